from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from peer.errors import IdentityError
from peer.identity import Identity, load, load_or_create, peer_id_of, public_key_of, verify


def test_made_once_private_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "identity.key"
    first = load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_or_create(path).peer_id == first.peer_id
    assert [p.name for p in path.parent.iterdir()] == ["identity.key"]


def test_golden_peer_id() -> None:
    key = "d04ab232742bb4ab3a1368bd4615e4e6d0224ab71a016baf8520a332c9778737"
    assert peer_id_of(bytes.fromhex(key)) == "12D3KooWPqT2nMDSiXUSx5D7fasaxhxKigVhcqfkKqrLghCq9jxz"


def test_peer_id_and_key_are_one(tmp_path: Path) -> None:
    identity = Identity.generate()
    assert public_key_of(identity.peer_id) == identity.public_key
    assert Identity.from_bytes(identity.to_bytes()).peer_id == identity.peer_id
    for wrong in ("", "12D3KooW", "Qm" + "a" * 44, identity.peer_id[:-1], "0" * 52, identity.peer_id + "1"):
        with pytest.raises(ValueError, match=r"peer id|character"):
            public_key_of(wrong)


def test_signatures_are_bound_to_key_purpose_and_message() -> None:
    one, other = Identity.generate(), Identity.generate()
    signature = one.sign(b"purpose", b"message")
    assert verify(one.public_key, b"purpose", b"message", signature)
    assert not verify(other.public_key, b"purpose", b"message", signature)
    assert not verify(one.public_key, b"another", b"message", signature)
    assert not verify(one.public_key, b"purpose", b"messagf", signature)
    assert not verify(one.public_key, b"purpose", b"message", b"")
    assert not verify(b"short", b"purpose", b"message", signature)


def pem(form: serialization.PrivateFormat, passphrase: bytes = b"") -> bytes:
    locked = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    return Ed25519PrivateKey.generate().private_bytes(serialization.Encoding.PEM, form, locked)


LOCKED_OPENSSH = (
    b"-----BEGIN OPENSSH PRIVATE KEY-----\n"
    + base64.encodebytes(b"openssh-key-v1\0\0\0\0\x0aaes256-ctr\0\0\0\x06bcrypt" + bytes(200))
    + b"-----END OPENSSH PRIVATE KEY-----\n"
)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (pem(serialization.PrivateFormat.PKCS8), r"a PEM file \(PRIVATE KEY\),"),
        (pem(serialization.PrivateFormat.PKCS8, b"word"), r"a PEM file \(ENCRYPTED PRIVATE KEY\) with a passphrase"),
        (pem(serialization.PrivateFormat.OpenSSH), "an OpenSSH private key,"),
        (LOCKED_OPENSSH, "an OpenSSH private key with a passphrase"),
        (
            b"# comment\n-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n",
            r"\(RSA PRIVATE KEY\) with a passphrase",
        ),
        (b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI ada@example\n", "an OpenSSH public key"),
        (b"PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: aes256-cbc\n", "a PuTTY private key with a passphrase"),
        (b"\x30\x2e\x02\x01\x00" + b"k" * 43, "a DER file"),
        (b"\x08\x00\x12\xa9\x09" + b"k" * 1193, "a libp2p key of type RSA"),
        (b"CAESQ" + b"k" * 87, "a libp2p key in base64"),
        (b"5e" * 64 + b"\n", "128 hexadecimal digits"),
        (b"[12, 34]", "a JSON text"),
    ],
)
def test_a_key_file_of_another_program_is_named(tmp_path: Path, raw: bytes, kind: str) -> None:
    path = tmp_path / "my key"
    path.write_bytes(raw)  # in any file mode: the kind of the content is reported first
    with pytest.raises(IdentityError, match=f"holds .*{kind}") as caught:
        load_or_create(path)
    assert "peer id new --operator FILE" in caught.value.fix
    assert path.read_bytes() == raw


def test_a_key_that_has_to_exist_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "no folder" / "operator.key"
    with pytest.raises(IdentityError, match=f"there is no key file {path}") as caught:
        load(path)
    assert caught.value.fix.endswith(f"peer id new --operator '{path}'")
    assert list(tmp_path.iterdir()) == []
    made = load_or_create(path)
    assert (load(path).peer_id, load(path).file) == (made.peer_id, path) == (made.peer_id, made.file)


@pytest.mark.parametrize("damage", [b"", b"x" * 68, b"\x08\x01\x12\x40" + b"k" * 64])
def test_a_damaged_key_is_named_and_left_alone(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "identity.key"
    path.write_bytes(damage)
    path.chmod(0o600)
    with pytest.raises(IdentityError, match=f"damaged: (it holds {len(damage)} bytes|the public half)"):
        load_or_create(path)
    assert path.read_bytes() == damage


def test_a_key_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    load_or_create(path)
    path.chmod(0o644)
    with pytest.raises(IdentityError) as caught:
        load_or_create(path)
    assert "chmod 600" in caught.value.fix


@pytest.fixture
def vfat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a file system on which every file has the mode of its mount, as on a USB stick."""
    real = os.fstat
    monkeypatch.setattr(
        os, "fstat", lambda descriptor: os.stat_result(((found := real(descriptor))[0] | 0o755, *found[1:]))
    )


def test_where_chmod_cannot_help_nobody_is_told_to_run_it(tmp_path: Path, vfat: None) -> None:
    path = tmp_path / "identity.key"
    path.write_bytes(Identity.generate().to_bytes())
    with pytest.raises(IdentityError, match=r"other users \(mode 755\)") as caught:
        load_or_create(path)
    assert "chmod 600" not in caught.value.fix
    assert "FAT" in caught.value.fix
    assert "umask=077" in caught.value.fix


def test_no_key_is_made_where_others_could_read_it(tmp_path: Path, vfat: None) -> None:
    with pytest.raises(IdentityError, match="it was not made") as caught:
        load_or_create(tmp_path / "identity.key")
    assert "local disk" in caught.value.fix
    assert list(tmp_path.iterdir()) == []
