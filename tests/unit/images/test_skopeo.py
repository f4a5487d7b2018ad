# ruff: noqa: E501 (texts as skopeo prints them)
"""What skopeo says becomes the right typed error; its command line is what the configuration asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.errors import (
    CapacityError,
    DSecError,
    ImageCorrupt,
    ImageError,
    ImageNotFound,
    RegistryDenied,
    RegistryRateLimited,
    RegistryUnreachable,
)
from dsec.images.config import ImagesConfig
from dsec.images.references import parse_image
from dsec.images.skopeo import asked_again, copy_argv, error_from_text, mirrored, rate_limit_delay_s

# As skopeo 1.9.3 says it.
SAID: list[tuple[str, type[DSecError]]] = [
    ('Error reading manifest 9 in r/x: manifest unknown: manifest unknown', ImageNotFound),
    ('initializing source docker://r/x:1: reading manifest 1 in r/x: name unknown: repository name not known', ImageNotFound),
    ('reading manifest latest in docker.io/a/b: errors:\\ndenied: requested access to the resource is denied', RegistryDenied),
    ('unable to retrieve auth token: invalid username/password: unauthorized: incorrect', RegistryDenied),
    ('initializing source docker://r/x:1: pinging container registry r: invalid status code from registry 403 (Forbidden)', RegistryDenied),
    ('pinging container registry r: Get \\"https://r/v2/\\": dial tcp: connect: connection refused', RegistryUnreachable),
    ('pinging container registry r: Get \\"https://r/v2/\\": dial tcp: lookup r: no such host', RegistryUnreachable),
    ('pinging container registry r: Get \\"https://r/v2/\\": http: server gave HTTP response to HTTPS client', RegistryUnreachable),
    ('reading manifest 1 in r/x: toomanyrequests: You have reached your pull rate limit.', RegistryRateLimited),
    ('writing blob: write /scratch/x: no space left on device', CapacityError),
    ('initializing source docker-archive:/x: loading tar component manifest.json: unexpected EOF', ImageCorrupt),
    ('writing blob: Digest did not match, expected sha256:a, got sha256:b', ImageCorrupt),
    ('something that nobody has seen before', ImageError),
]  # fmt: skip


@pytest.mark.parametrize(("said", "expected"), SAID)
def test_errors_are_typed(said: str, expected: type[DSecError]) -> None:
    """Each known text has its class; an unknown one stays a plain ImageError."""
    error = error_from_text(f'time="…" level=debug msg="404 (Not Found)"\ntime="…" level=fatal msg="{said}"\n', "x")
    assert type(error) is expected
    assert said.replace('\\"', '"')[-30:] in error.message or isinstance(error, CapacityError)


@pytest.mark.parametrize(
    ("said", "expected", "again"),
    [
        ("writing blob: happened during read: unexpected EOF", RegistryUnreachable, True),
        (
            "writing blob: happened during read: read tcp 1.2.3.4:5: connection reset by peer",
            RegistryUnreachable,
            True,
        ),
        (
            "writing blob: happened during read: Digest did not match, expected sha256:a, got sha256:b",
            ImageCorrupt,
            False,
        ),
        (
            "pinging container registry r: invalid status code from registry 503 (Service Unavailable)",
            RegistryUnreachable,
            True,
        ),
        ("reading manifest 1 in r/x: received unexpected HTTP status: 502 Bad Gateway", RegistryUnreachable, True),
        ("pinging container registry r: dial tcp: connect: connection refused", RegistryUnreachable, False),
    ],
)
def test_what_passes_says_when_to_come_again(said: str, expected: type[DSecError], again: bool) -> None:
    """A download that broke off and a server's own trouble are worth another try; wrong bytes and nobody there are not."""
    error = error_from_text(f'level=fatal msg="{said}"\n', "r/x:1", registry=True)
    assert type(error) is expected and (error.retry_after_s is not None) is again


def test_where_to_ask_how_long() -> None:
    """At what was refused, over plain HTTP only where the settings say so; not where skopeo has said it."""
    digest = "sha256:" + "a" * 64
    busy = error_from_text(
        f'level=fatal msg="reading blob {digest}: invalid status code 503 (x)"', "x", registry=True
    )
    assert asked_again(busy, "docker://r:5000/a/b:1", ("r:5000",)) == f"http://r:5000/v2/a/b/blobs/{digest}"
    assert asked_again(busy, "docker-archive:/x", ()) is None
    ping = error_from_text('level=fatal msg="pinging r: invalid status code 503 (x)"', "x", registry=True)
    assert asked_again(ping, "docker://docker.io/a/b:1", ()) == "https://registry-1.docker.io/v2/a/b/manifests/1"
    assert asked_again(ping, f"docker://r/a@{digest}", ()) == f"https://r/v2/a/manifests/{digest}"
    for told, url in ((17.0, None), (60.0, "https://r/v2/a/manifests/1")):
        assert asked_again(RegistryRateLimited("x", retry_after_s=told), "docker://r/a:1", ()) == url


def test_rate_limit_is_seen_in_the_log() -> None:
    """skopeo's own back-off line tells how long the registry wants to be left alone."""
    line = 'level=debug msg="Too many requests to https://127.0.0.1:5000/v2/: sleeping for 17.000000 seconds before next attempt"'
    assert rate_limit_delay_s(line) == 17.0
    assert rate_limit_delay_s('level=debug msg="GET https://x/v2/"') is None


def test_mirror_stands_for_its_registry_only() -> None:
    """A mirror's prefix replaces the registry; a digest wins over a tag."""
    mirrors = {"docker.io": "127.0.0.1:5000/hub/"}
    assert mirrored(parse_image("python:3.12"), mirrors) == "127.0.0.1:5000/hub/library/python:3.12"
    assert mirrored(parse_image("ghcr.io/a/b"), mirrors) == "ghcr.io/a/b:latest"
    digest = "sha256:" + "a" * 64
    assert mirrored(parse_image(f"python:3@{digest}"), {}) == f"docker.io/library/python@{digest}"


def test_command_line_follows_the_configuration(tmp_path: Path) -> None:
    """Only the registries named are spoken to without TLS, and the given credentials file is used."""
    config = ImagesConfig(
        layers_dir=tmp_path, catalogue=tmp_path, scratch_dir=tmp_path,
        insecure_registries=("127.0.0.1:5000",), auth_file=tmp_path / "auth.json",
    )  # fmt: skip
    plain = copy_argv("docker://127.0.0.1:5000/x:1", tmp_path, tmp_path, config, has_policy=False)
    assert "--src-tls-verify=false" in plain
    assert "--insecure-policy" in plain
    assert plain[plain.index("--src-authfile") + 1] == str(tmp_path / "auth.json")
    secure = copy_argv("docker://127.0.0.1:5001/x:1", tmp_path, tmp_path, config, has_policy=True)
    assert "--src-tls-verify=false" not in secure
    assert "--insecure-policy" not in secure
