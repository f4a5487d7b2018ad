"""TLS of the API: what a server shows, and which server a client believes."""

from __future__ import annotations

import hashlib
import hmac
import re
import ssl
from pathlib import Path

from dsec.errors import InvalidArgument

__all__ = ["client_context", "fingerprint_of", "server_context"]

_FINGERPRINT = re.compile(r"sha256:([0-9a-f]{64})")


def fingerprint_of(certificate: bytes) -> str:
    """``sha256:HEX`` of a certificate, given in DER or as the first of a PEM file."""
    if b"-----BEGIN" in certificate:
        begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
        _, _, rest = certificate.decode("ascii", "replace").partition(begin)
        try:
            certificate = ssl.PEM_cert_to_DER_cert(begin + rest.partition(end)[0] + end)
        except ValueError:
            raise InvalidArgument("not a certificate in PEM form") from None
    return "sha256:" + hashlib.sha256(certificate).hexdigest()


def client_context(trust: str | None) -> ssl.SSLContext:
    """How to meet a server: ``trust`` is a PEM file of authorities or ``sha256:HEX``; None: the system's authorities.

    With a fingerprint exactly that certificate is believed, whatever name and authority it has. Raises
    InvalidArgument.
    """
    if trust is None:
        return ssl.create_default_context()
    text = trust.lower().replace(" ", "")
    if text.startswith("sha256:"):
        text = "sha256:" + text.removeprefix("sha256:").replace(":", "")
        if _FINGERPRINT.fullmatch(text) is None:
            raise InvalidArgument(f"not a fingerprint: {trust[:80]!r}", remedy="sha256: and 64 hexadecimal digits")
        return _pinned(text)
    if not Path(trust).is_file():
        raise InvalidArgument(f"no certificates to trust: {trust} is no file", remedy="A PEM file, or sha256:HEX")
    try:
        return ssl.create_default_context(cafile=trust)
    except (ssl.SSLError, OSError) as error:
        raise InvalidArgument(f"{trust} holds no certificates: {error}") from None


def _pinned(fingerprint: str) -> ssl.SSLContext:
    """A context whose handshakes fail unless the server has that certificate: so nothing was sent to another."""

    def check(found: bytes | None) -> None:
        if found is None or not hmac.compare_digest(fingerprint_of(found), fingerprint):
            raise ssl.SSLCertVerificationError("the server's certificate is not the one that is trusted")

    class PinnedObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            check(self.getpeercert(True))

    class PinnedSocket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            check(self.getpeercert(True))

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.sslobject_class, context.sslsocket_class = PinnedObject, PinnedSocket
    return context


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """TLS 1.2 and newer with a certificate chain and its key, PEM files; raises InvalidArgument."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    for path in (certificate, key):
        if not Path(path).is_file():
            raise InvalidArgument(f"tls: {path} is no file")
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise InvalidArgument(f"tls: {certificate} and {key} are no certificate and its key: {error}") from None
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted")
