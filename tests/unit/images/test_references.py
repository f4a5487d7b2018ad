"""Names of images, layers and sources are parsed as Docker does, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import InvalidArgument
from dsec.images.references import (
    is_base_reference,
    is_layer_reference,
    parse_image,
    parse_image_name,
    parse_layer,
    parse_layer_choice,
    parse_source,
)

DIGEST = "sha256:" + "0123456789abcdef" * 4

NORMALISED = {
    "python": "docker.io/library/python:latest",
    "python:3.12": "docker.io/library/python:3.12",
    "docker.io/python:3.12": "docker.io/library/python:3.12",
    "index.docker.io/library/python:3.12": "docker.io/library/python:3.12",
    "bitnami/redis": "docker.io/bitnami/redis:latest",
    "a/b/c:1": "docker.io/a/b/c:1",
    "ghcr.io/owner/name:v1.2": "ghcr.io/owner/name:v1.2",
    "localhost/x": "localhost/x:latest",
    "localhost:5000/x:y": "localhost:5000/x:y",
    "127.0.0.1:5000/x": "127.0.0.1:5000/x:latest",
    "[::1]:5000/x": "[::1]:5000/x:latest",
    f"python@{DIGEST}": f"docker.io/library/python@{DIGEST}",
    f"python:3.12@{DIGEST}": f"docker.io/library/python:3.12@{DIGEST}",
    "a__b/c--d.e_f:Tag_.-1": "docker.io/a__b/c--d.e_f:Tag_.-1",
    "dsec/debian:12": "dsec/debian:12",
    "dsec/debian": "dsec/debian:latest",
    "docker.io/dsec/debian:12": "docker.io/dsec/debian:12",
}

MALFORMED = [
    "",
    ":",
    "/",
    "python:",
    "python@",
    "python@sha256:abc",
    f"python@{DIGEST.upper()}",
    "Python",
    "a//b",
    "a/",
    "/a",
    "-a",
    "a..b",
    "a___b",
    "a b",
    "a\n",
    "python:3.12\n",
    "python:-x",
    "python:" + "x" * 129,
    "host:port/x",
    "host:123456/x",
    "-host.io/x",
    "0123456789abcdef" * 4,
    "x" * 256,
    "docker://python",
]


@pytest.mark.parametrize(("text", "expected"), NORMALISED.items())
def test_normalises_as_docker_does(text: str, expected: str) -> None:
    """Each spelling becomes the one that Docker means by it."""
    assert str(parse_image(text)) == expected


@pytest.mark.parametrize("text", MALFORMED)
def test_refuses_malformed_names(text: str) -> None:
    """A malformed name is the caller's fault and comes with a remedy."""
    with pytest.raises(InvalidArgument) as caught:
        parse_image(text)
    assert caught.value.remedy


@pytest.mark.parametrize("text", ["dsec/debian:12", "dsec/a/b"])
def test_own_names_are_reserved(text: str) -> None:
    """Names under dsec/ have no registry, so nothing can pull them."""
    assert parse_image(text).is_reserved
    assert not parse_image("docker.io/" + text).is_reserved


component = st.from_regex(r"[a-z0-9]+((\.|_|__|-{1,3})[a-z0-9]+){0,2}", fullmatch=True).filter(lambda s: len(s) < 30)
tag = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True)
registry = st.one_of(st.just(""), st.from_regex(r"[a-z0-9]{1,9}\.[a-z]{2,5}(:[1-9][0-9]{0,4})?", fullmatch=True))


@given(registry, st.lists(component, min_size=1, max_size=3), st.one_of(st.none(), tag), st.booleans())
def test_normalising_twice_changes_nothing(host: str, parts: list[str], label: str | None, pinned: bool) -> None:
    """Whatever is well-formed has a normal form, which is its own normal form."""
    name = (
        "/".join(([host] if host else []) + parts) + (f":{label}" if label else "") + (f"@{DIGEST}" if pinned else "")
    )
    try:
        once = parse_image(name)
    except InvalidArgument:
        # A first part with a dot is a registry, which may not have an underscore.
        assert not host
        assert len(parts) > 1
        assert "." in parts[0]
        assert "_" in parts[0] or "--" in parts[0] or "-." in parts[0]
        return
    assert parse_image(str(once)) == once
    assert once.is_pinned == pinned


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    """No text raises anything but InvalidArgument."""
    for parse in (parse_image, parse_layer, parse_layer_choice, parse_source):
        try:
            parse(text)
        except InvalidArgument as error:
            assert error.remedy


def test_layer_references() -> None:
    """Layers have three name spaces, one of them only where a layer is asked for, and always a version."""
    assert str(parse_layer("workspace/sqlparse-0.5:v1")) == "workspace/sqlparse-0.5:v1"
    assert parse_layer("toolkit/pytest:8").kind == "toolkit"
    assert is_layer_reference("toolkit/pytest:8")
    assert not is_layer_reference("python")
    assert parse_layer("base/debian:12").kind == "base"
    assert not is_layer_reference("base/debian:12")
    assert is_base_reference("base/debian:12") and is_base_reference("@sha256:" + "a" * 64)
    assert not any(map(is_base_reference, ("docker.io/base/debian:12", "basement/x", "python@sha256:" + "a" * 64)))
    for text in ("workspace/x", "images/x:1", "workspace/X:1", "workspace/a/b:1", "workspace/x:", "toolkit/../x:1"):
        with pytest.raises(InvalidArgument):
            parse_layer(text)


@pytest.mark.parametrize("name", ["workspace/x:1", "toolkit/x", "base/x:1", "@sha256:" + "a" * 64])
def test_names_of_layers_are_no_images(name: str) -> None:
    """Wherever an image is asked for by name; spelled out, Docker Hub's are meant."""
    with pytest.raises(InvalidArgument) as caught:
        parse_image_name(name)
    assert "dsec layer pull" in (caught.value.remedy or "")
    if not name.startswith("@"):
        assert str(parse_image_name(f"docker.io/{name}")).startswith(f"docker.io/{name}")


def test_layer_choices() -> None:
    """A tag, a digest, or a tag pinned by a digest; and nothing else."""
    digest = "a1" * 32
    assert parse_layer_choice("toolkit/x:1").digest is None
    pinned = parse_layer_choice(f"toolkit/x:1@sha256:{digest}")
    assert (str(pinned.reference), pinned.digest) == ("toolkit/x:1", digest)
    bare = parse_layer_choice(f"@sha256:{digest}")
    assert (bare.reference, bare.digest, str(bare)) == (None, digest, f"@sha256:{digest}")
    for text in ("", "@", "@sha256:", f"sha256:{digest}", f"@{digest}", f"python@sha256:{digest}", "toolkit/x:1@"):
        with pytest.raises(InvalidArgument) as caught:
            parse_layer_choice(text)
        assert caught.value.remedy


def test_sources() -> None:
    """Three transports are known; the image name of docker:// is normalised."""
    assert str(parse_source("docker://python:3.12")) == "docker://docker.io/library/python:3.12"
    archive = parse_source("docker-archive:/tmp/x.tar:a/b:1")
    assert (archive.transport, archive.location, archive.selector) == ("docker-archive", "/tmp/x.tar", "a/b:1")
    assert parse_source("oci:dir").selector is None
    for text in ("python", "dir:/x", "oci:", "docker-archive:", "docker://", "oci:a\0b"):
        with pytest.raises(InvalidArgument):
            parse_source(text)
