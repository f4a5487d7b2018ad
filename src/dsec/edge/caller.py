"""Who asks, as the apiserver says in three headers, and what of the node's is there for them.

The caller of a request or stream is kept beside its task, so that every lookup asks, whatever route it serves: what
another project has does not exist. Nothing is looked up where no caller is known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

import msgspec

from dsec.api.access import DEFAULT_PROJECT, EVERY_PROJECT, includes
from dsec.errors import Denied

__all__ = ["Caller", "acting", "caller_of", "calling"]


class Caller(msgspec.Struct, frozen=True):
    """A principal, with a scope in one project, or in all (``*``)."""

    principal: str
    project: str
    scope: str

    @property
    def home(self) -> str:
        """Where what they make belongs."""
        return DEFAULT_PROJECT if self.project == EVERY_PROJECT else self.project

    def sees(self, project: str) -> bool:
        """Whether what belongs to a project is there for them."""
        return self.project in (EVERY_PROJECT, project)

    def need(self, scope: str, what: str) -> None:
        """Raise Denied where their scope is too small."""
        if not includes(self.scope, scope):
            raise Denied(
                f"{what} needs a token of scope {scope}, and this one's is {self.scope}",
                phase="scope",
                remedy="An admin makes one: `dsec token create --scope`",
                needs=scope,
            )


_calling: ContextVar[Caller] = ContextVar("calling")


def calling() -> Caller:
    """Who asks for what is being done now; raises Denied where nobody said."""
    try:
        return _calling.get()
    except LookupError:
        raise Denied("the edge is not told who asks", phase="caller") from None


def caller_of(headers: Mapping[str, str]) -> Caller:
    """The caller in a request's headers, names in lower case; raises Denied unless all three are there."""
    named = [headers.get(f"dsec-{name}") for name in ("principal", "project", "scope")]
    if not all(named):
        raise Denied("the edge is not told who asks", phase="caller")
    return Caller(*(each or "" for each in named))


@contextlib.contextmanager
def acting(caller: Caller) -> Iterator[None]:
    """In this block, and the tasks that it starts, the caller asks."""
    before = _calling.set(caller)
    try:
        yield
    finally:
        _calling.reset(before)
