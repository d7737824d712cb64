from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.discovery.address_cache import AddressCache, parse
from peer.discovery.keys import bucket_key, slot
from peer.discovery.validator import RecordGate, dht_expiry
from peer.identity import Identity, peer_id_of, public_key_of
from peer.protocol.messages import MAX_ROUND, PeerId, PeerRecord, RunId, Status
from peer.signed_record import InvalidRecord, is_endpoint, open_record, seal

OWNER = Identity.generate()
NOW = 1_750_000_000.0
ports = st.integers(1, 65535)
names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,40}[A-Za-z0-9])?", fullmatch=True)
hosts = names | st.ip_addresses(v=4).map(str) | st.ip_addresses(v=6).map(lambda ip: f"[{ip}]")
endpoints = st.builds(lambda host, port: f"{host}:{port}", hosts, ports).filter(lambda text: "%" not in text)
amounts = st.floats(0, 1e15)


@st.composite
def records(draw: st.DrawFn) -> PeerRecord:
    issued = draw(st.floats(NOW - 100, NOW))
    low = draw(st.integers(1, 2**32 - 1))
    return PeerRecord(
        PeerId(OWNER.peer_id),
        RunId(draw(st.binary(min_size=32, max_size=32))),
        tuple(draw(st.lists(endpoints, max_size=8))),
        draw(st.booleans()),
        low,
        draw(st.integers(low, 2**32 - 1)),
        draw(st.integers(0, MAX_ROUND)),
        draw(amounts),
        draw(st.sampled_from(Status)),
        issued,
        issued + draw(st.floats(101, 119)),
    )


@given(records())
def test_a_record_opens_as_it_was_sealed(record: PeerRecord) -> None:
    assert open_record(seal(record, OWNER), record.run_id, NOW) == record


@given(records())
def test_a_node_stores_every_honest_record(record: PeerRecord) -> None:
    raw = seal(record, OWNER)
    value = b"\xc5" + len(raw).to_bytes(2, "big") + raw
    gate = RecordGate(lambda: NOW)
    assert gate.admit(slot(bucket_key(record.run_id)), b"\xc4\x20" + OWNER.public_key, value, dht_expiry(record))


@given(st.binary(min_size=32, max_size=32))
def test_a_peer_id_is_a_key_and_a_key_is_one_peer_id(key: bytes) -> None:
    assert public_key_of(peer_id_of(key)) == key


@pytest.mark.parametrize("extra", ["\n", " ", "\t", "\u2003", "\x1f"])
def test_a_peer_id_has_one_spelling(extra: str) -> None:
    """base58 would ignore trailing white space."""
    with pytest.raises(ValueError, match="peer id"):
        public_key_of(OWNER.peer_id + extra)


@pytest.mark.parametrize("endpoint", ["[fe80::1%eth0]:80", "[fe80::1%a\n b]:80", "[fe80::1%\x1b[2J]:80", "[::1%é]:1"])
def test_an_endpoint_has_no_zone_for_it_may_hold_any_character(endpoint: str) -> None:
    assert not is_endpoint(endpoint)


def test_a_round_beyond_all_rounds_is_no_record() -> None:
    record = PeerRecord(
        PeerId(OWNER.peer_id), RunId(b"r" * 32), (), True, 1, 1, MAX_ROUND + 1, 0.0, Status.TRAINING, NOW, NOW + 60
    )
    with pytest.raises(InvalidRecord, match="round"):
        seal(record, OWNER)


@given(st.dictionaries(ports, st.floats(NOW - 1e6, NOW), max_size=64))
def test_a_cache_reads_what_it_wrote(tmp_path_factory: pytest.TempPathFactory, seen: dict[int, float]) -> None:
    path = tmp_path_factory.getbasetemp() / "seen.json"
    cache = AddressCache(None, NOW)
    cache._path = path
    for port, at in seen.items():
        cache.record_seen([f"/ip4/192.0.2.1/tcp/{port}/p2p/{OWNER.peer_id}"], at)
    cache.save(force=True)
    assert AddressCache(path, NOW).addresses() == cache.addresses()
    assert len(cache.addresses()) == len(seen)


def test_a_time_beyond_all_numbers_in_the_cache_is_damage_and_no_crash(tmp_path: Path) -> None:
    raw = b'{"peers":[{"address":"a","seen":1' + b"0" * 400 + b"}]}"
    with pytest.raises(ValueError, match="no list of addresses"):
        parse(raw, NOW)
    (tmp_path / "seen.json").write_bytes(raw)
    assert AddressCache(tmp_path / "seen.json", NOW).addresses() == []


@pytest.mark.parametrize("seen", ["NaN", "Infinity", "-Infinity", "null", '"x"'])
def test_no_time_is_no_reason_to_believe_an_address(seen: str) -> None:
    address = json.dumps(f"/ip4/192.0.2.1/tcp/1/p2p/{OWNER.peer_id}")
    raw = f'{{"peers":[{{"address":{address},"seen":{seen}}}]}}'.encode()
    try:
        assert all(at <= NOW for at in parse(raw, NOW)[0].values())
    except ValueError:
        assert seen in ("null", '"x"')
