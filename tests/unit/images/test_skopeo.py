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
from dsec.images.skopeo import copy_argv, error_from_text, mirrored, rate_limit_delay_s

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
