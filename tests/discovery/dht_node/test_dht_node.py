"""The adapter's own promises: failures as readable text, no leftover processes or tasks, and guards against pitfalls of
hivemind."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from peer.discovery.dht_node import node as p2pd
from peer.discovery.dht_node import process
from peer.discovery.dht_node.node import DhtNode, DhtNodeOptions, DictionaryDHTValue
from peer.discovery.directory import DhtDirectory
from peer.discovery.keys import bucket_key, slot
from peer.discovery.validator import RecordGate, dht_expiry
from peer.errors import AddressError, DirectoryFailed
from peer.identity import Identity
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.signed_record import seal

RUN = RunId(b"r" * 32)
LISTEN = ("/ip4/127.0.0.1/tcp/0",)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 20.0))


def options(folder: Path, **changes: Any) -> DhtNodeOptions:
    identity = Identity.generate()
    path = folder / "key"
    path.write_bytes(identity.to_bytes())
    return DhtNodeOptions(path, identity.public_key, **changes)


def script(folder: Path, body: str) -> Path:
    path = folder / "fake-p2pd"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o700)
    return path


@pytest.mark.processes
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (None, "missing"),
        ("kill -9 $$", "killed"),
        ("exec sleep 60", "in time"),
        ("echo 'cannot execute, sorry' >&2; exit 3", "cannot execute, sorry"),
    ],
)
def test_a_p2pd_that_does_not_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str | None, words: str
) -> None:
    monkeypatch.setattr(process, "BINARY", tmp_path / "nothing" if body is None else script(tmp_path, body))

    async def scenario() -> None:
        with pytest.raises(DirectoryFailed) as caught:
            await DhtNode.start(options(tmp_path, startup_s=0.5), LISTEN, None)
        assert words in caught.value.found
        assert caught.value.fix

    run(scenario())


@pytest.mark.processes
def test_only_a_p2pd_that_is_missing_or_damaged_is_to_be_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "p2pd"
    damaged.write_bytes(bytes(64))
    damaged.chmod(0o700)
    monkeypatch.setattr(process, "BINARY", damaged)

    async def scenario() -> None:
        with pytest.raises(DirectoryFailed, match="is damaged") as caught:
            await DhtNode.start(options(tmp_path), LISTEN, None)
        assert "--force-reinstall --no-deps hivemind" in caught.value.fix

    run(scenario())
    for said in ("Daemon failed to start: code from the working folder ran", "PermissionError: p2pd", "p2pd not found"):
        assert "hivemind" not in process.failed(said).fix
    monkeypatch.setattr(process, "BINARY", tmp_path / "nothing")
    assert "--force-reinstall --no-deps hivemind" in process.failed("p2pd not found").fix
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    gone = process.failed("p2pd binary not found at /nowhere/python")
    assert "/nowhere/python" in gone.found
    assert "hivemind" not in gone.fix


@pytest.mark.processes
def test_a_port_taken_from_under_us_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            address = f"/ip4/127.0.0.1/tcp/{holder.getsockname()[1]}"
            with pytest.raises(AddressError, match="tcp"):
                await DhtNode.start(options(tmp_path), [address], None)

    run(scenario())


@pytest.mark.processes
def test_ctrl_c_in_our_terminal_does_not_reach_p2pd(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = await DhtNode.start(options(tmp_path), LISTEN, None)
        try:
            assert os.getsid(node.pid) == node.pid
            assert os.getpgid(node.pid) != os.getpgid(0)
        finally:
            await node.close()

    run(scenario())


@pytest.mark.processes
def test_close_ends_the_process_its_sockets_and_its_tasks(tmp_path: Path) -> None:
    async def scenario() -> None:
        before = asyncio.all_tasks()
        node = await DhtNode.start(options(tmp_path), LISTEN, None)
        sockets = [Path(m["unix"]) for m in (node._process._daemon_listen_maddr, node._process._client_listen_maddr)]
        assert sockets[0].exists()
        await node.close()
        assert asyncio.all_tasks() == before
        assert not any(path.exists() for path in sockets)
        with pytest.raises(ProcessLookupError):
            os.kill(node.pid, 0)

    run(scenario())


@pytest.mark.processes
def test_calls_fail_at_once_when_p2pd_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        node = await DhtNode.start(options(tmp_path / "a"), LISTEN, None)
        other = await DhtNode.start(options(tmp_path / "b"), LISTEN, None)
        try:
            assert await node.link((await other.addresses())[0], 5.0)
            os.kill(node.pid, 9)
            assert "SIGKILL" in await node.ended()
            await node.close()
            began = time.monotonic()
            assert await node.find(b"key") == []
            assert time.monotonic() - began < 0.5 * p2pd._CALL_S
        finally:
            await other.close()

    run(scenario())


@pytest.mark.processes
def test_a_search_that_still_reads_an_answer_ends_before_the_node_does(tmp_path: Path) -> None:
    """Fault: if the node closed first, hivemind's search would fail and print its error after the daemon has ended."""

    async def scenario() -> None:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        gate = RecordGate(time.time, RUN)
        one = await DhtNode.start(options(tmp_path / "one"), LISTEN, gate)
        two = await DhtNode.start(options(tmp_path / "two"), LISTEN, gate)
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        begun, free = threading.Event(), threading.Event()
        try:
            assert await one.link((await two.addresses())[0], 5.0)
            one._thread.start(lambda: (begun.set(), free.wait(10.0)))  # blocks the thread, as on a busy machine
            searching = asyncio.create_task(one.find(b"key"))
            while one._thread._pool._work_queue.empty():
                await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.1, free.set)
            await one.close()
            assert searching.done()
            assert await searching == []
        finally:
            free.set()
            await two.close()
        gc.collect()
        assert not faults

    run(scenario())


def entry(owner: Identity, now: float) -> tuple[bytes, bytes, float]:
    record = PeerRecord(PeerId(owner.peer_id), RUN, (), True, 1, 1, 0, 1.0, Status.TRAINING, now, now + 60)
    raw = seal(record, owner)
    return owner.public_key, b"\xc4" + bytes([len(raw)]) + raw, dht_expiry(record)


def test_one_bad_entry_does_not_spoil_a_whole_answer() -> None:
    now = time.time()
    good, other = Identity.generate(), Identity.generate()
    answer = DictionaryDHTValue()
    answer.store(*entry(good, now))
    answer.store(other.public_key, entry(good, now)[1], now + 50.0)
    answer.store(b"x" * 300, b"junk", now + 50.0)
    answer.store("text", ["junk"], now + 51.0)
    answer.store(*entry(Identity.generate(), now + 90.0))
    validator = p2pd._Validator(RecordGate(lambda: now))
    assert validator.prune(slot(bucket_key(RUN)), answer)
    assert [subkey for subkey, _ in answer.items()] == [good.public_key]


def test_nothing_is_cached_for_others() -> None:
    cache = p2pd._NoCache()
    assert not cache.store(1, b"value", math.inf)
    assert not cache.store_subkey(1, b"sub", b"value", math.inf)
    assert cache.get(1) is None


def test_hivemind_does_not_write_to_our_terminal() -> None:
    logger = logging.getLogger("hivemind")
    assert logger.handlers == []
    assert logger.propagate
    assert logger.getEffectiveLevel() >= logging.WARNING
    assert logging.getLevelName(logging.WARNING) == "WARNING"


def test_a_directory_refuses_addresses_it_cannot_use(tmp_path: Path) -> None:
    identity = Identity.generate()
    path = tmp_path / "key"
    path.write_bytes(identity.to_bytes())

    async def refused(**changes: Any) -> None:
        with pytest.raises(AddressError):
            await DhtDirectory(identity=identity, identity_path=path, run_id=RUN, **changes).start()

    async def scenario() -> None:
        await refused(host_maddrs=["/ip4/127.0.0.1/udp/0/quic-v1"])
        await refused(initial_peers=["/ip4/127.0.0.1/tcp/4001"])
        await refused(announce_maddrs=["/ip4/127.0.0.1/tcp/0"])

    run(scenario())


@pytest.mark.processes
def test_announced_addresses_are_what_others_are_told(tmp_path: Path) -> None:
    identity = Identity.generate()
    path = tmp_path / "key"
    path.write_bytes(identity.to_bytes())

    async def scenario() -> None:
        directory = await DhtDirectory(
            identity=identity,
            identity_path=path,
            run_id=RUN,
            host_maddrs=LISTEN,
            announce_maddrs=["/ip4/192.0.2.9/tcp/4001", "/dns4/host.example/tcp/4001"],
        ).start()
        try:
            tail = f"/tcp/4001/p2p/{identity.peer_id}"
            assert directory.addresses() == [f"/ip4/192.0.2.9{tail}", f"/dns4/host.example{tail}"]
        finally:
            await directory.close()

    run(scenario())


def test_what_is_noted_of_newcomers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p2pd, "_MAX_NOTED", 3)
    noted: dict[str, str] = {}
    for address in ("a", "b", "c", "a", "d", "e"):
        p2pd._note(noted, address, f"word of {address}")
    assert noted == {"a": "word of a", "d": "word of d", "e": "word of e"}


def test_a_call_that_comes_before_the_node_has_begun_is_answered() -> None:
    async def scenario() -> None:
        begun = p2pd.protocol.DHTProtocol(_initialized_with_create=True)
        answer = await begun.rpc_ping(p2pd.dht_pb2.PingRequest(), None)
        assert not answer.peer.node_id, "nobody takes it into a routing table"

    run(scenario())
