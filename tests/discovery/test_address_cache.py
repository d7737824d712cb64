from __future__ import annotations

import json
from pathlib import Path

import pytest

from peer.discovery.address_cache import MAX_AGE_S, MAX_CACHED, AddressCache
from peer.identity import Identity

NOW = 1_750_000_000.0
PEER = Identity.generate().peer_id


def address(port: int) -> str:
    return f"/ip4/192.0.2.1/tcp/{port}/p2p/{PEER}"


def test_it_survives_a_restart_latest_first(tmp_path: Path) -> None:
    path = tmp_path / "seen.json"
    cache = AddressCache(path, NOW)
    cache.record_seen([address(1)], NOW)
    cache.record_seen([address(2)], NOW + 1)
    cache.save()
    assert AddressCache(path, NOW + 2).addresses() == [address(2), address(1)]
    assert [child.name for child in tmp_path.iterdir()] == ["seen.json"]


def test_it_is_bounded_in_number_and_age(tmp_path: Path) -> None:
    path = tmp_path / "seen.json"
    cache = AddressCache(path, NOW)
    cache.record_seen([address(9999)], NOW - MAX_AGE_S - 1)
    for port in range(1, 2 * MAX_CACHED + 1):
        cache.record_seen([address(port)], NOW + port)
    expected = [address(port) for port in range(2 * MAX_CACHED, MAX_CACHED, -1)]
    assert cache.addresses() == expected
    cache.save()
    assert AddressCache(path, NOW + 2 * MAX_CACHED).addresses() == expected
    assert AddressCache(path, NOW + 2 * MAX_AGE_S).addresses() == []


def test_what_cannot_be_dialled_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "seen.json"
    cache = AddressCache(None, NOW)
    cache.record_seen(["/unix/tmp/socket", "--flag"], NOW)
    assert cache.addresses() == []
    body = [{"address": "/unix/tmp/x", "seen": NOW}, {"address": address(1), "seen": NOW}]
    path.write_text(json.dumps({"format": 1, "peers": body}))
    assert AddressCache(path, NOW).addresses() == [address(1)]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"peers": 3}',
        '{"peers": [1]}',
        '{"peers": [{"address": "x"}]}',
        '{"peers": [], "listened": 3}',
        "[" * 60000,
    ],
)
def test_a_damaged_file_reads_as_empty_and_is_replaced(tmp_path: Path, content: str) -> None:
    path = tmp_path / "seen.json"
    path.write_text(content)
    cache = AddressCache(path, NOW)
    assert cache.addresses() == []
    cache.record_seen([address(1)], NOW)
    cache.save()
    assert AddressCache(path, NOW).addresses() == [address(1)]


def test_a_failed_write_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = AddressCache(tmp_path / "nowhere" / "seen.json", NOW)
    cache.record_seen([address(1)], NOW)
    cache.save()
    assert "seen.json" in caplog.text
    assert cache.addresses() == [address(1)]


def test_an_unchanged_set_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "seen.json"
    cache = AddressCache(path, NOW)
    cache.record_seen([address(1)], NOW)
    cache.save()
    path.unlink()
    cache.record_seen([address(1)], NOW + 10)
    cache.save()
    assert not path.exists()
    cache.save(force=True)
    assert path.exists()


def test_where_we_listened_is_kept_where_a_port_had_to_be_found(tmp_path: Path) -> None:
    path = tmp_path / "seen.json"
    cache = AddressCache(path, NOW)
    cache.note_listened({"/ip4/0.0.0.0/tcp/0": "/ip4/0.0.0.0/tcp/4001", "/ip6/::/tcp/5": "/ip6/::/tcp/5"})
    cache.save()
    assert AddressCache(path, NOW).listened == {"/ip4/0.0.0.0/tcp/0": "/ip4/0.0.0.0/tcp/4001"}


@pytest.mark.parametrize("found", ["/ip4/127.0.0.1/tcp/4001", "/ip4/0.0.0.0/tcp/70000", "/ip4/0.0.0.0/udp/1", "", 3])
def test_a_damaged_port_is_not_believed(tmp_path: Path, found: object) -> None:
    path = tmp_path / "seen.json"
    path.write_text(json.dumps({"format": 1, "listened": {"/ip4/0.0.0.0/tcp/0": found}, "peers": []}))
    assert AddressCache(path, NOW).listened == {}


@pytest.mark.parametrize("content", [b"\0" * 452, b"", b"[]", b'{"peers": 7}', b"\xff"])
def test_a_damaged_file_is_told_in_words(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    """A power loss leaves a file of zeros, or an empty one."""
    path = tmp_path / "seen.json"
    path.write_bytes(content)
    assert not AddressCache(path, NOW).addresses()
    assert "starting without" in caplog.text
    assert "Error(" not in caplog.text
