"""The tasks: two neighbouring releases of a real project each.

Release N is the broken repository, the source of N+1 the golden patch, the tests of N+1 the judge. These are the
eight pairs with the shortest suites of the nine that are known to be good: 0.3 to 10 s each on one core.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SDISTS", "TASKS", "TOOLKIT", "Task", "task_named"]


@dataclass(frozen=True)
class Task:
    """A repair task. Paths are relative to the root of the repository."""

    name: str
    project: str
    """As the package index spells it."""
    broken: str
    """Release N."""
    golden: str
    """Release N+1."""
    source: str
    """The package's source: the only directory that a patch may touch."""
    tests: str
    """What the suite is started on."""
    module: str
    """What is imported."""
    regression: tuple[str, str]
    """(file below ``source``, Python to append to it): breaks something that the tests of N+1 know."""
    unstable: frozenset[str] = frozenset()
    """Tests that judge nothing: they measure time, and fail on a busy machine."""

    @property
    def import_root(self) -> str:
        """What has to be on the path for ``module`` to be found: ``src`` or the root itself."""
        return self.source.rpartition("/")[0]

    @property
    def title(self) -> str:
        """The task in a table."""
        return f"{self.project} {self.broken} → {self.golden}"


def _sqlparse(broken: str, golden: str) -> Task:
    return Task(
        name=f"sqlparse-{broken}",
        project="sqlparse",
        broken=broken,
        golden=golden,
        source="sqlparse",
        tests="tests",
        module="sqlparse",
        regression=("__init__.py", "def split(sql, *args, **kwargs):\n    return [sql]\n"),
    )


TASKS: tuple[Task, ...] = (
    _sqlparse("0.4.3", "0.4.4"),
    _sqlparse("0.5.0", "0.5.1"),
    _sqlparse("0.5.1", "0.5.2"),
    Task(
        name="jinja2-3.1.4",
        project="jinja2",
        broken="3.1.4",
        golden="3.1.5",
        source="src/jinja2",
        tests="tests",
        module="jinja2",
        regression=("filters.py", 'FILTERS["upper"] = FILTERS["lower"]\n'),
    ),
    Task(
        name="more-itertools-10.5.0",
        project="more-itertools",
        broken="10.5.0",
        golden="10.6.0",
        source="more_itertools",
        tests="tests",
        module="more_itertools",
        regression=("__init__.py", "def chunked(iterable, *args, **kwargs):\n    return iter([list(iterable)])\n"),
        unstable=frozenset(
            {
                "tests/test_more.py::TimeLimitedTests::test_basic",
                "tests/test_more.py::CallbackIterTests::test_abort",
            }
        ),
    ),
    Task(
        name="tomlkit-0.12.4",
        project="tomlkit",
        broken="0.12.4",
        golden="0.12.5",
        source="tomlkit",
        tests="tests",
        module="tomlkit",
        regression=("__init__.py", 'def dumps(mapping, *args, **kwargs):\n    return ""\n'),
    ),
    Task(
        name="pluggy-1.4.0",
        project="pluggy",
        broken="1.4.0",
        golden="1.5.0",
        source="src/pluggy",
        tests="testing",
        module="pluggy",
        regression=("_tracing.py", "TagTracer.setprocessor = lambda self, tags, processor: None\n"),
    ),
    Task(
        name="wcwidth-0.2.12",
        project="wcwidth",
        broken="0.2.12",
        golden="0.2.13",
        source="wcwidth",
        tests="tests",
        module="wcwidth",
        regression=("__init__.py", "def wcswidth(text, *args, **kwargs):\n    return len(text)\n"),
    ),
)

TOOLKIT: tuple[str, ...] = (
    "attrs==26.1.0",
    "idna==3.20",
    "iniconfig==2.3.1",
    "MarkupSafe==3.0.4",
    "outcome==1.3.0.post0",
    "packaging==26.4",
    "pluggy==1.5.0",
    "pytest==8.1.2",
    "PyYAML==6.0.4",
    "sniffio==1.3.1",
    "sortedcontainers==2.4.0",
    "trio==0.35.0",
)
"""pytest and what the suites import. pytest 8.1 runs on pluggy 1.4 as well, which is itself under test."""

SDISTS: dict[tuple[str, str], str] = {
    ("jinja2", "3.1.4"): "4a3aee7acbbe7303aede8e9648d13b8bf88a429282aa6122a993f0ac800cb369",
    ("jinja2", "3.1.5"): "8fefff8dc3034e27bb80d67c671eb8a9bc424c0ef4c0826edbff304cceff43bb",
    ("more-itertools", "10.5.0"): "5482bfef7849c25dc3c6dd53a6173ae4795da2a41a80faea6700d9f5846c5da6",
    ("more-itertools", "10.6.0"): "2cd7fad1009c31cc9fb6a035108509e6547547a7a738374f10bd49a09eb3ee3b",
    ("pluggy", "1.4.0"): "8c85c2876142a764e5b7548e7d9a0e0ddb46f5185161049a79b7e974454223be",
    ("pluggy", "1.5.0"): "2cffa88e94fdc978c4c574f15f9e59b7f4201d439195c3715ca9e2486f1d0cf1",
    ("sqlparse", "0.4.3"): "69ca804846bb114d2ec380e4360a8a340db83f0ccf3afceeb1404df028f57268",
    ("sqlparse", "0.4.4"): "d446183e84b8349fa3061f0fe7f06ca94ba65b426946ffebe6e3e8295332420c",
    ("sqlparse", "0.5.0"): "714d0a4932c059d16189f58ef5411ec2287a4360f17cdd0edd2d09d4c5087c93",
    ("sqlparse", "0.5.1"): "bb6b4df465655ef332548e24f08e205afc81b9ab86cb1c45657a7ff173a3a00e",
    ("sqlparse", "0.5.2"): "9e37b35e16d1cc652a2545f0997c1deb23ea28fa1f3eefe609eee3063c3b105f",
    ("tomlkit", "0.12.4"): "7ca1cfc12232806517a8515047ba66a19369e71edf2439d0f5824f91032b6cc3",
    ("tomlkit", "0.12.5"): "eef34fba39834d4d6b73c9ba7f3e4d1c417a4e56f89a7e96e090dd0d24b8fb3c",
    ("wcwidth", "0.2.12"): "f01c104efdf57971bcb756f054dd58ddec5204dd15fa31d6503ea57947d97c02",
    ("wcwidth", "0.2.13"): "72ea0c06399eb286d978fdedb6923a9eb47e1c486ce63e9b4e64fc18303972b5",
}
"""SHA-256 of every source distribution: what is unpacked and run is what was looked at."""


def task_named(name: str) -> Task:
    """The task of that name; raises KeyError."""
    return {task.name: task for task in TASKS}[name]
