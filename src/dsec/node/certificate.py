"""The node's own certificate: made by openssl when the settings ask for it, and kept until it is about to run out."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

from dsec.api.trust import fingerprint_of
from dsec.errors import NodeError, Unsupported
from dsec.node.config import NodeConfig

__all__ = ["ensure_certificate", "fingerprint"]

_DAYS = 820
_RENEW_S = 30 * 86400
_OPENSSL_S = 60


def ensure_certificate(config: NodeConfig) -> None:
    """Make the node's certificate where ``tls.generate`` asks for one and there is none that lasts another month.

    Raises Unsupported without openssl.
    """
    if not config.tls.generate:
        return
    certificate, key = config.tls_files
    if Path(key).is_file() and _lasts(certificate):
        return
    directory = Path(certificate).parent
    directory.mkdir(mode=0o700, exist_ok=True)
    new_key, new = directory / "key.new", directory / "certificate.new"
    new_key.unlink(missing_ok=True)
    os.close(os.open(new_key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    names = ["DNS:localhost", "DNS:*.localhost", "IP:127.0.0.1", "IP:::1"]
    if config.ports_domain != "localhost":
        names.append(f"DNS:*.{config.ports_domain}")
    if config.host not in ("127.0.0.1", "::1", "0.0.0.0", "::"):
        names.append(f"IP:{config.host}")
    made = _openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", str(_DAYS),
        "-subj", f"/CN=dsec {config.node}", "-addext", f"subjectAltName={','.join(names)}",
        "-keyout", str(new_key), "-out", str(new),
    )  # fmt: skip
    if made.returncode != 0:
        raise NodeError(f"openssl made no certificate: {made.stderr.strip()[-300:]}", phase="tls")
    # The key first: a certificate without its key is made anew.
    with contextlib.suppress(FileNotFoundError):
        Path(certificate).unlink()
    new_key.replace(key)
    new.replace(certificate)


def fingerprint(config: NodeConfig) -> str | None:
    """``sha256:HEX`` of the certificate that the apiserver shows; None without TLS."""
    if not config.has_tls:
        return None
    return fingerprint_of(Path(config.tls_files[0]).read_bytes())


def _lasts(certificate: str) -> bool:
    if not Path(certificate).is_file():
        return False
    return _openssl("x509", "-in", certificate, "-noout", "-checkend", str(_RENEW_S)).returncode == 0


def _openssl(*arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["openssl", *arguments], capture_output=True, text=True, timeout=_OPENSSL_S)
    except FileNotFoundError:
        raise Unsupported(
            "there is no openssl to make a certificate with", phase="machine",
            remedy="Install openssl, or name a certificate and key in [tls]",
        ) from None  # fmt: skip
