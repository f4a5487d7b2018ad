"""How skopeo is called and what its words mean; without I/O.

skopeo reports the registry's answer only as text on standard error. The patterns here are of its version 1.9 and
later; what none of them matches stays an ImageError that quotes the text, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from dsec.errors import (
    DSecError,
    ImageCorrupt,
    ImageError,
    ImageNotFound,
    RegistryDenied,
    RegistryRateLimited,
    RegistryUnreachable,
)
from dsec.images.config import ImagesConfig
from dsec.images.disk import disk_full
from dsec.images.references import ImageReference

__all__ = [
    "POLICY",
    "RATE_LIMIT_REMEDY",
    "asked_again",
    "copy_argv",
    "error_from_text",
    "mirrored",
    "rate_limit_delay_s",
]

POLICY = Path("/etc/containers/policy.json")
"""Signature policy of the machine."""
RATE_LIMIT_REMEDY = "Wait, log in to the registry, or configure a mirror"
_DEFAULT_DELAY_S = 60.0
_LONGEST_TOLD_S = 60.0
"""skopeo waits no longer than this, whatever a registry says."""
_SOON_S = 1.0
_HUB = {"docker.io": "registry-1.docker.io"}
_BACKOFF = re.compile(r"Too many requests to \S+: sleeping for ([0-9.]+) seconds")
_FATAL = re.compile(r'level=fatal msg="(.*)"\s*$', re.MULTILINE)
_BLOB = re.compile(r"blob (sha256:[0-9a-f]{64})")
_SERVER_ERROR = r"\b50[0-9] \(|received unexpected HTTP status: 5"
_BROKEN_OFF = re.compile(r"happened during read: (?!Digest did not match)")
_PASSING = re.compile(_SERVER_ERROR + r"|i/o timeout|connection reset|TLS handshake timeout")
"""What may be gone in a moment; of a registry that was never reached nobody knows that."""
_PATTERNS: tuple[tuple[type[ImageError], str, str | None], ...] = (
    (
        RegistryRateLimited,
        r"too many requests|toomanyrequests|\b429\b",
        RATE_LIMIT_REMEDY,
    ),
    (ImageNotFound, r"manifest unknown|name unknown|\b404 \(Not Found\)|repository name not known", None),
    (
        RegistryDenied,
        r"unauthorized|authentication required|access to the resource is denied"
        r"|\b40[13] \((?:Forbidden|Unauthorized)\)"
        r"|invalid status code from registry 40[13]|invalid username/password",
        "Log in (docker login) as the node's user, or check the name: registries hide what is missing",
    ),
    (
        RegistryUnreachable,
        r"server gave HTTP response to HTTPS client|x509:|tls:",
        "Add it to the node's insecure_registries if it speaks plain HTTP or has its own certificate",
    ),
    (
        RegistryUnreachable,
        r"connection refused|no such host|i/o timeout|connection reset|no route to host|network is unreachable"
        r"|TLS handshake timeout|server misbehaving|" + _SERVER_ERROR,
        "Check the registry's name and the node's network, then try again",
    ),
    (
        ImageNotFound,
        r"Tag .* not found|no image found|reference .* not found|choosing image"
        r"|more than one image in",
        None,
    ),
    (
        ImageCorrupt,
        r"unexpected EOF|[Dd]igest did not match|archive/tar|gzip: invalid|invalid tar header|zlib: invalid"
        r"|not found in archive|[Tt]ar archive|manifest\.json|unexpected end of JSON|invalid character"
        r"|[Uu]nexpected tar|does not match|loading tar component",
        "Fetch or save the image again",
    ),
)  # fmt: skip


def mirrored(reference: ImageReference, mirrors: Mapping[str, str]) -> str:
    """The name to ask for: the registry replaced by its mirror's prefix, the digest preferred to the tag.

    skopeo refuses a name with both.
    """
    prefix = mirrors.get(reference.registry, reference.registry).rstrip("/")
    suffix = f"@{reference.digest}" if reference.digest else f":{reference.tag}"
    return f"{prefix}/{reference.repository}{suffix}"


def copy_argv(source: str, layout: Path, scratch: Path, config: ImagesConfig, *, has_policy: bool) -> list[str]:
    """The command that copies an image (``docker://…`` or ``docker-archive:…``) to a new OCI layout.

    ``has_policy`` says whether the machine has a signature policy; without one, none can be enforced.
    """
    argv = ["skopeo", "--debug", "--tmpdir", str(scratch)]
    if not has_policy:
        argv.append("--insecure-policy")
    argv += ["copy", "--quiet", "--remove-signatures", "--dest-oci-accept-uncompressed-layers"]
    if config.auth_file is not None:
        argv += ["--src-authfile", str(config.auth_file)]
    if source.startswith("docker://") and _host(source) in config.insecure_registries:
        argv.append("--src-tls-verify=false")
    return [*argv, source, f"oci:{layout}:image"]


def _host(source: str) -> str:
    return source.removeprefix("docker://").partition("/")[0]


def rate_limit_delay_s(line: str) -> float | None:
    """Seconds that the registry wants to be left alone, if a line of skopeo's log says that it answered 429."""
    match = _BACKOFF.search(line)
    return float(match[1]) if match else None


def error_from_text(text: str, name: str, *, registry: bool = False) -> DSecError:
    """The typed error for what skopeo said when it failed to copy ``name``; ``registry``: from there.

    What may have passed in a moment has a ``retry_after_s``.
    """
    fatal = _FATAL.findall(text)
    said = fatal[-1].replace('\\"', '"') if fatal else text.strip()[-500:]
    if "no space left on device" in said:
        return disk_full()
    if registry and _BROKEN_OFF.search(said):
        return RegistryUnreachable(
            f"{name}: the download broke off: {said[-400:]}",
            phase="image",
            remedy="Try again: what came whole is not fetched twice",
            retry_after_s=_SOON_S,
        )
    for kind, pattern, remedy in _PATTERNS:
        if re.search(pattern, said):
            delay = _DEFAULT_DELAY_S if kind is RegistryRateLimited else None
            if kind is RegistryUnreachable and _PASSING.search(said):
                delay = _SOON_S
            return kind(f"{name}: {said[-400:]}", phase="image", remedy=remedy, retry_after_s=delay)
    return ImageError(f"{name} could not be copied: {said[-400:]}", phase="image")


def asked_again(error: DSecError, source: str, insecure: Collection[str]) -> str | None:
    """Where to ask how long a registry wants to be left alone, when skopeo cannot have said it; None where it has.

    At 503 skopeo does not look at ``Retry-After``; at 429 it says a minute for all that is longer.
    """
    if isinstance(error, RegistryRateLimited):
        unknown = (error.retry_after_s or 0.0) >= _LONGEST_TOLD_S
    else:
        unknown = isinstance(error, RegistryUnreachable) and "503" in error.message
    if not unknown or not source.startswith("docker://"):
        return None
    host, _, path = source.removeprefix("docker://").partition("/")
    name, at, digest = path.partition("@")
    if not at:
        name, _, digest = path.rpartition(":")
    blob = _BLOB.search(error.message)
    what = f"blobs/{blob[1]}" if blob else f"manifests/{digest}"
    scheme = "http" if host in insecure else "https"
    return f"{scheme}://{_HUB.get(host, host)}/v2/{name}/{what}"
