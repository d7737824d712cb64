"""The peer's only key: Ed25519, in libp2p's private key file format, which p2pd reads too.

Its libp2p peer id names the peer in the DHT, in TLS and under every signature. A signature is over `domain + NUL +
message`, so that it cannot be reused for another purpose."""

from __future__ import annotations

import base64
import functools
import os
import re
import stat
from pathlib import Path

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from peer.errors import IdentityError, file_advice, for_shell
from peer.user_folders import keeps_modes, make_private
from peer.whole_files import create_file

_PRIVATE_HEAD = b"\x08\x01\x12\x40"  # protobuf: key type Ed25519, 64 bytes of data follow
_PUBLIC_HEAD = b"\x08\x01\x12\x20"
_ID_HEAD = b"\x00\x24" + _PUBLIC_HEAD  # identity multihash of the 36-byte public key message
_LIBP2P_KINDS = {0: "RSA", 2: "secp256k1", 3: "ECDSA"}  # KeyType in libp2p's crypto.proto
_PEM = re.compile(rb"^-----BEGIN ([A-Z0-9 ]{1,40})-----", re.MULTILINE)
_HEX = re.compile(rb"[0-9a-fA-F]+")
_LONGEST = 2**16
"""Most bytes that are read of a key file: enough to recognize any format."""
_SPELT = 2048
"""Size of the caches between keys and peer ids. A node converts its neighbours' ids again and again, and base58 is
slow."""


@functools.lru_cache(_SPELT)
def peer_id_of(public_key: bytes) -> str:
    """Return the libp2p peer id (`12D3Koo…`) of a 32-byte Ed25519 public key."""
    assert len(public_key) == 32, len(public_key)
    return base58.b58encode(_ID_HEAD + public_key).decode()


def key_in(peer_id: bytes) -> bytes:
    """Return the 32-byte Ed25519 public key inside a peer id in bytes. Raises ValueError when it contains none."""
    if len(peer_id) != len(_ID_HEAD) + 32 or not peer_id.startswith(_ID_HEAD):
        raise ValueError(f"not an Ed25519 peer id: {peer_id[:64].hex()}")
    return peer_id[len(_ID_HEAD) :]


def is_peer_id(text: str) -> bool:
    """Return whether this is the peer id of an Ed25519 key."""
    try:
        public_key_of(text)
    except ValueError:
        return False
    return True


def public_key_of(peer_id: str) -> bytes:
    """Return the 32-byte Ed25519 public key inside a peer id. Raises ValueError when it contains none."""
    # Letters and digits only: base58 ignores trailing white space, and an id must have one spelling.
    if not 50 <= len(peer_id) <= 56 or not peer_id.isalnum():
        raise ValueError(f"not an Ed25519 peer id: {peer_id[:60]!r}")
    return _key_spelt(peer_id)


@functools.lru_cache(_SPELT)
def _key_spelt(peer_id: str) -> bytes:
    return key_in(base58.b58decode(peer_id))


def verify(public_key: bytes, domain: bytes, message: bytes, signature: bytes) -> bool:
    """Return whether the owner of `public_key` made `signature` for this domain and message. Never raises."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, domain + b"\0" + message)
    except (InvalidSignature, ValueError):
        return False
    return True


class Identity:
    """A private key that was loaded or generated."""

    def __init__(self, key: Ed25519PrivateKey, file: Path | None = None) -> None:
        """`file`: the file it was read from, for messages. None: not from a file."""
        self.key = key
        self.file = file
        self.public_key = key.public_key().public_bytes_raw()
        self.peer_id = peer_id_of(self.public_key)

    @classmethod
    def generate(cls) -> Identity:
        return cls(Ed25519PrivateKey.generate())

    def sign(self, domain: bytes, message: bytes) -> bytes:
        """Sign `domain + NUL + message`. Return the signature, 64 bytes."""
        return self.key.sign(domain + b"\0" + message)

    def to_bytes(self) -> bytes:
        """Encode the key as libp2p's PrivateKey protobuf: 4 bytes of header, 32 of seed, 32 of public key."""
        seed = self.key.private_bytes(
            serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption()
        )
        return _PRIVATE_HEAD + seed + self.public_key

    @classmethod
    def from_bytes(cls, raw: bytes, file: Path | None = None) -> Identity:
        """Decode a libp2p private key. `file`: where it was read from. Raises ValueError for other bytes."""
        if len(raw) != 68 or not raw.startswith(_PRIVATE_HEAD):
            raise ValueError(f"it holds {len(raw)} bytes and no Ed25519 libp2p private key, which has 68")
        identity = cls(Ed25519PrivateKey.from_private_bytes(raw[4:36]), file)
        if identity.public_key != raw[36:]:
            raise ValueError("the public half does not belong to the private half")
        return identity


def load(path: Path, advice: str = "") -> Identity:
    """Read the key at `path`. For commands that need an existing key, whose peer id others already know.

    `advice`: the fix if there is no such file; by default, how to make an operator's key there. Raises IdentityError if
    the file does not exist, cannot be read, is malformed, or is readable by other users."""
    try:
        return _load(path)
    except FileNotFoundError as error:
        advice = advice or (
            "Name the file of a key that exists: this command makes none. Make an operator's new key with: "
            f"peer id new --operator {for_shell(path)}"
        )
        raise IdentityError(f"there is no key file {path}", advice) from error


def load_or_create(path: Path) -> Identity:
    """Read the key at `path`, or create one there (mode 0600) if there is none. Never overwrites a file.

    Only for a node's own key, whose peer id no other peer knows yet. Raises IdentityError if the key cannot be created
    or read, is malformed, or is readable by other users."""
    try:
        return _load(path)
    except FileNotFoundError:
        pass
    identity = Identity.generate()
    try:
        make_private(path.parent)
        if os.name == "posix" and not keeps_modes(path.parent):
            raise IdentityError(f"other users could read the key file {path}: it was not made", _no_modes(path.parent))
        create_file(path, identity.to_bytes())
    except FileExistsError:  # another process has created the key first
        return _load(path)
    except OSError as error:
        raise IdentityError(f"cannot make the key file {path}: {error.strerror}", file_advice(error, path)) from error
    return Identity(identity.key, path)


def set_aside(path: Path) -> Path | None:
    """Rename the key at `path`, so that a new one can be created there. Return its new path. None: there is no key.

    The new name ends in the last characters of the peer id. Raises IdentityError."""
    try:
        former = path.with_name(f"{path.name}.{_load(path).peer_id[-8:]}")
        os.link(path, former)  # unlike a rename, this fails if that file exists
        path.unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise IdentityError(f"cannot rename the key file {path}: {error.strerror}", file_advice(error, path)) from error
    return former


def _load(path: Path) -> Identity:
    """Read a key. Raises FileNotFoundError, and IdentityError for all other problems."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            raw = file.read(_LONGEST)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise IdentityError(f"cannot read the key file {path}: {error.strerror}", file_advice(error, path)) from error
    if (kind := _foreign_format(raw)) is not None:
        raise IdentityError(
            f"the key file {path} holds {kind}, which peer cannot use",
            "Keys of peer are libp2p files of Ed25519 keys without a passphrase, as `peer id new` makes them. Name "
            "another file, or make a key there with: peer id new --operator FILE",
        )
    try:
        identity = Identity.from_bytes(raw, path)
    except ValueError as error:
        raise IdentityError(
            f"the key file {path} is damaged: {error}",
            "Restore it from a backup. If there is none, move the file away and make a new key, which is another peer "
            "id, with: peer id new",
        ) from error
    if os.name == "posix" and mode & 0o077:
        advice = f"Run: chmod 600 {for_shell(path)}" if keeps_modes(path.parent) else _no_modes(path.parent)
        raise IdentityError(f"the key file {path} can be read by other users (mode {mode:o})", advice)
    return identity


def _no_modes(folder: Path) -> str:
    """Return the advice for a key on a file system where chmod has no effect."""
    return (
        f"chmod cannot help: the file system of {folder} (FAT, exFAT or a network share) gives all files one mode. "
        "Keep the key on a local disk of Linux or macOS, or mount this one for you alone (options uid=, umask=077)."
    )


def _foreign_format(raw: bytes) -> str | None:
    """Return the format of a key file made by another program. None: not recognized."""
    if found := _PEM.search(raw):
        label = found[1].decode()
        if label == "OPENSSH PRIVATE KEY":
            return f"an OpenSSH private key{_with_passphrase(not _is_plain_openssh(raw))}"
        locked = label.startswith("ENCRYPTED") or b"Proc-Type: 4,ENCRYPTED" in raw
        return f"a PEM file ({label}){_with_passphrase(locked)}"
    if raw.startswith((b"ssh-", b"ecdsa-sha2-", b"sk-")):
        return "an OpenSSH public key"
    if raw.startswith(b"PuTTY-User-Key-File"):
        return f"a PuTTY private key{_with_passphrase(b'Encryption: none' not in raw)}"
    if raw.startswith(b"age-encryption.org/") or raw[:1] in (b"\x85", b"\x8c"):
        return "an encrypted file (of age or GnuPG)"
    if raw[:1] == b"\x30" and len(raw) > 2 and raw[1] in (len(raw) - 2, 0x81, 0x82):
        return "a DER file (PKCS #8 or similar)"
    if len(raw) > 3 and raw[0] == 0x08 and raw[2] == 0x12 and raw[1] in _LIBP2P_KINDS:
        return f"a libp2p key of type {_LIBP2P_KINDS[raw[1]]}"
    text = raw.strip()
    if text.startswith(b"CAES"):
        return "a libp2p key in base64, as IPFS writes it into its config"
    if len(text) in (64, 128) and _HEX.fullmatch(text):
        return f"{len(text)} hexadecimal digits"
    return "a JSON text" if text[:1] in (b"{", b"[") else None


def _with_passphrase(locked: bool) -> str:
    return " with a passphrase" if locked else ""


def _is_plain_openssh(raw: bytes) -> bool:
    """Return whether an OpenSSH private key has no passphrase: the file begins with its cipher's name
    (PROTOCOL.key)."""
    try:
        body = base64.b64decode(b"".join(raw.split(b"-----")[2].split()))
    except (ValueError, IndexError):
        return True
    return body.startswith(b"openssh-key-v1\0\0\0\0\4none")
