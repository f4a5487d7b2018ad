"""Completing an exec: environments laid over each other, defaults from the sandbox, hashes of what matters."""

from __future__ import annotations

from typing import Any

import pytest

from dsec.api.types import CreateRequest
from dsec.edge.environment import DEFAULT_PATH, environment_of
from dsec.edge.specs import canonical_create, canonical_exec, parse_exec
from dsec.errors import InvalidArgument, Unsupported
from dsec.images import Image, ImageConfig, LayerTag


def image(**config: Any) -> Image:
    return Image("img", "sha256:x", ImageConfig(**config), ("l1", "l2"), 1, 0.0)


def exec_(**fields: Any) -> dict[str, Any]:
    return {"sandbox_id": "s", "key": "k", "argv": [b"true"]} | fields


def test_environment_order_is_image_then_caller() -> None:
    """The caller's value wins; PATH is there even when the image has none."""
    made = environment_of(
        CreateRequest(image="i", key="k", env={"A": "caller"}), image(env={"A": "image", "B": "image"}), None, ()
    )
    assert made.env == {"PATH": DEFAULT_PATH, "A": "caller", "B": "image"}


def tag(digest: str) -> LayerTag:
    """A layer that brings nothing but its files."""
    return LayerTag(f"toolkit/{digest}:1", digest, 1, 0.0)


def test_layers_go_image_workspace_toolkits_once_each() -> None:
    """A layer that appears twice stays at its upper place."""
    made = environment_of(CreateRequest(image="i", key="k"), image(), tag("w"), [tag("t"), tag("l1")])
    assert made.layers == ["l2", "w", "t", "l1"]


def test_commands_join_the_entrypoint_as_in_docker() -> None:
    """`image` takes entrypoint and cmd; words replace cmd; neither is an InvalidArgument."""
    config = {"entrypoint": ("run",), "cmd": ("default",)}
    assert environment_of(CreateRequest(image="i", key="k", command="image"), image(**config), None, ()).command == [
        "run",
        "default",
    ]
    assert environment_of(CreateRequest(image="i", key="k", command=["x"]), image(**config), None, ()).command == [
        "run",
        "x",
    ]
    with pytest.raises(InvalidArgument, match="no command"):
        environment_of(CreateRequest(image="i", key="k", command="image"), image(), None, ())


def test_the_callers_user_and_directory_win() -> None:
    """An empty user is root's, not the image's."""
    made = environment_of(
        CreateRequest(image="i", key="k", user="", workdir="/w"), image(user="app", workdir="/srv"), None, ()
    )
    assert (made.user, made.workdir) == ("", "/w")


@pytest.mark.parametrize(
    "changed", [{"argv": [b"false"]}, {"env": {"A": "b"}}, {"timeout_s": 3.0}, {"stdin": True}, {"cwd": "/x"}]
)
def test_what_is_run_changes_the_hash(changed: dict[str, Any]) -> None:
    """Another program, environment, directory or deadline is another body."""
    assert canonical_exec(parse_exec(exec_())) != canonical_exec(parse_exec(exec_(**changed)))


@pytest.mark.parametrize("changed", [{"mode": "stream"}, {"credit": {1: 5}}, {"max_output_bytes": 5}])
def test_how_output_is_fetched_does_not(changed: dict[str, Any]) -> None:
    """A retry may ask for its output in another way."""
    assert canonical_exec(parse_exec(exec_())) == canonical_exec(parse_exec(exec_(**changed)))


def test_deadline_and_on_full_are_no_part_of_a_create() -> None:
    """A retry has less time left, and is the same create."""
    one = CreateRequest(image="i", key="k")
    assert canonical_create(one) == canonical_create(CreateRequest(image="i", key="k", deadline_s=1, on_full="raise"))
    assert canonical_create(one) != canonical_create(CreateRequest(image="j", key="k"))


@pytest.mark.parametrize(
    "fields",
    [
        {"argv": None},
        {"argv": []},
        {"argv": [b""]},
        {"argv": [b"a\0b"]},
        {"shell": "true"},
        {"timeout_s": 0},
        {"timeout_s": -1},
        {"timeout_s": float("nan")},
        {"grace_s": -1},
        {"max_output_bytes": (64 << 20) + 1},
        {"max_output_bytes": -1},
        {"mode": "live"},
        {"cwd": "relative"},
        {"env": {"A=": "x"}},
        {"key": ""},
        {"argv": "text"},
    ],
)
def test_impossible_execs_are_refused(fields: dict[str, Any]) -> None:
    """Each is an InvalidArgument."""
    with pytest.raises(InvalidArgument):
        parse_exec(exec_(**fields))


def test_an_unknown_field_is_named() -> None:
    """An SDK newer than the server learns what the server lacks."""
    with pytest.raises(Unsupported, match="colour"):
        parse_exec(exec_(colour=True))
