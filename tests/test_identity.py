from __future__ import annotations

import stat
from pathlib import Path

import pytest

from peer.errors import IdentityError
from peer.identity import Identity, load_or_create, peer_id_of, public_key_of, verify


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
