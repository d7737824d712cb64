"""TLS 1.3 that authenticates a server by its peer id, without distributing certificates.

gRPC's TLS does not accept an Ed25519 leaf certificate, but accepts a P-256 leaf signed by an Ed25519 root. A peer's
root certificate is a function of its 32-byte public key, as TLS does not verify the signature of a trust anchor itself.
A caller that knows the peer id can therefore rebuild the root and trust only this root.

Each root has a distinct subject name, because equal names break verification. The leaf's subject differs from its
issuer, because otherwise it would count as self-signed. A leaf is valid for some weeks and renewed daily, so a stolen
leaf key is useful only for that time."""

from __future__ import annotations

import contextlib
import datetime
import os
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterator

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import NameOID

from peer.clock.monotonic import run_time
from peer.identity import Identity, public_key_of

_FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_UNTIL = datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC)
BACKDATED = datetime.timedelta(days=7)
"""How far a caller's clock may be behind the clock of the server."""
VALID = datetime.timedelta(days=30)
"""Validity of a leaf, from its creation."""
RENEWED = datetime.timedelta(days=1)
"""Age at which a server replaces its leaf."""
ALPN = "h2"
"""Protocol that both sides must negotiate, the only one that gRPC offers."""
_ANYBODY = Ed25519PrivateKey.from_private_bytes(b"\0" * 32)
"""Key that signs the rebuilt roots. TLS never verifies these signatures."""


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def server_name(public_key: bytes) -> str:
    """Return the DNS name in a peer's leaf, shortened to fit into a label of 63 characters."""
    return public_key.hex()[:60]


def root_of(public_key: bytes) -> bytes:
    """Return the trust anchor (PEM) of a peer, from its 32-byte Ed25519 public key."""
    name = _name(public_key.hex())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(Ed25519PublicKey.from_public_bytes(public_key))
        .serial_number(1)
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(_ANYBODY, None)
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def leaf_for(identity: Identity, now: datetime.datetime) -> tuple[bytes, bytes]:
    """Create a P-256 key with a certificate signed by the peer's Ed25519 key. Return the private key and the
    certificate, both PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = identity.public_key
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_name(f"tls:{public.hex()[:32]}"))
        .issuer_name(_name(public.hex()))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(server_name(public))]), critical=False)
        .sign(identity.key, None)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private, certificate.public_bytes(serialization.Encoding.PEM)


class RenewedLeaf:
    """The TLS context of a server, whose leaf certificate is renewed daily. `now`: seconds since the epoch."""

    def __init__(self, identity: Identity, now: Callable[[], float] = run_time) -> None:
        self._identity = identity
        self._now = now
        self._made = self._moment()
        self._context = self._fresh()

    def context(self) -> ssl.SSLContext:
        """Return the context for the next handshake, with a leaf at most a day old."""
        if self._moment() - self._made >= RENEWED:
            self._made = self._moment()
            self._context = self._fresh()
        return self._context

    def _moment(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self._now(), datetime.UTC)

    def _fresh(self) -> ssl.SSLContext:
        return server_context(*leaf_for(self._identity, self._made))


def server_context(private: bytes, certificate: bytes) -> ssl.SSLContext:
    """Create a server's TLS 1.3 context from a private key and a certificate (PEM).

    Client certificates are not requested, because callers prove their key in the Hello. Session tickets are disabled,
    as no client resumes sessions."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE  # the caller knows which cipher its processor accelerates
    context.num_tickets = 0
    context.set_alpn_protocols([ALPN])
    with _named_file(private + certificate) as name:
        context.load_cert_chain(name)
    return context


@contextlib.contextmanager
def _named_file(content: bytes) -> Iterator[str]:
    """Yield the name of a file with this content, because `ssl` loads keys only from named files. On Linux the file is
    in memory. Elsewhere it is a temporary file, readable by its owner alone, which the end of the block deletes."""
    if sys.platform == "linux":
        with os.fdopen(os.memfd_create("leaf", os.MFD_CLOEXEC), "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile() as named:  # created with mode 0600
            named.write(content)
            named.flush()
            yield named.name


def client_context(peer_id: str) -> tuple[ssl.SSLContext, str]:
    """Return a TLS 1.3 context that accepts only this peer, and the server name to use with it.

    Raises ValueError when the peer id contains no key."""
    public = public_key_of(peer_id)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies the chain and the name
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([ALPN])
    context.load_verify_locations(cadata=root_of(public).decode())
    return context, server_name(public)
