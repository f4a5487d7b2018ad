"""What programs begin with: image, workspace, toolkits, and the caller over all of them."""

from __future__ import annotations

import pytest

from dsec.api.types import CreateRequest
from dsec.edge.environment import DEFAULT_PATH, environment_of, image_of, variables
from dsec.edge.wire_layers import parse_environment
from dsec.errors import InvalidArgument
from dsec.images import Image, ImageConfig, LayerEnvironment, LayerTag

IMAGE = Image("image", "sha256:i", ImageConfig(env={"LANG": "C", "A": "image"}), ("l1", "l2"), 1, 0.0)


def _tag(name: str, digest: str, environment: LayerEnvironment) -> LayerTag:
    return LayerTag(name, digest, 1, 0.0, environment)


def test_each_layer_is_over_those_below_and_the_caller_over_all() -> None:
    """Toolkits win over the workspace, it over the image, and what the caller gives over everything."""
    request = CreateRequest(image="image", key="k", env={"C": "caller"})
    made = environment_of(
        request,
        IMAGE,
        _tag("workspace/w:1", "w", LayerEnvironment({"A": "workspace", "B": "workspace", "C": "workspace"})),
        [_tag("toolkit/t:1", "t", LayerEnvironment({"B": "toolkit"}, ("/opt/t/bin",), ("/opt/t/late",)))],
    )
    assert made.env == {
        "PATH": f"/opt/t/bin:{DEFAULT_PATH}:/opt/t/late",
        "LANG": "C",
        "A": "workspace",
        "B": "toolkit",
        "C": "caller",
    }
    assert made.layers == ["l1", "l2", "w", "t"]
    assert made.composed == [["workspace/w:1", "w"], ["toolkit/t:1", "t"]]


def test_a_base_layer_is_an_image_without_a_command() -> None:
    """Its tag's variables and directories are the lowest; root's, in /."""
    base = _tag("base/b:1", "b", LayerEnvironment({"A": "base", "B": "base"}, ("/opt/b/bin",)))
    toolkit = _tag("toolkit/t:1", "t", LayerEnvironment({"B": "toolkit"}, ("/opt/t/bin",)))
    made = environment_of(CreateRequest(image="base/b:1", key="k"), image_of(base), None, [toolkit])
    assert made.env == {"PATH": f"/opt/t/bin:/opt/b/bin:{DEFAULT_PATH}", "A": "base", "B": "toolkit"}
    assert (made.image, made.image_digest, made.layers) == ("base/b:1", "sha256:b", ["b", "t"])
    assert (made.user, made.workdir, made.command) == ("", "/", None)
    with pytest.raises(InvalidArgument, match="no command"):
        environment_of(CreateRequest(image="base/b:1", key="k", command="image"), image_of(base), None, [])


def test_toolkits_stack_their_directories() -> None:
    """The topmost one's come first when prepended, last when appended."""
    one = LayerEnvironment(path_prepend=("/1a", "/1b"), path_append=("/1z",))
    two = LayerEnvironment(path_prepend=("/2a",), path_append=("/2z",))
    assert variables({"PATH": "/bin"}, [one, two])["PATH"] == "/2a:/1a:/1b:/bin:/1z:/2z"


def test_a_callers_path_is_taken_as_it_is() -> None:
    """Who sets PATH gets that PATH."""
    request = CreateRequest(image="image", key="k", env={"PATH": "/mine"})
    toolkit = _tag("toolkit/t:1", "t", LayerEnvironment(path_prepend=("/opt/t",)))
    assert environment_of(request, IMAGE, None, [toolkit]).env["PATH"] == "/mine"


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", '{"env":{"PATH":"/x"}}', '{"env":{"A=B":"x"}}', '{"env":{"":"x"}}', '{"env":{"A":"\\u0000"}}',
        '{"path_prepend":["relative"]}', '{"path_append":["/a:/b"]}', '{"path_append":"/a"}', " " * 20_000,
    ],
)  # fmt: skip
def test_what_a_layer_may_not_bring(text: str) -> None:
    """InvalidArgument for what is malformed, for PATH as a whole, and for what is no directory."""
    with pytest.raises(InvalidArgument):
        parse_environment(text)
