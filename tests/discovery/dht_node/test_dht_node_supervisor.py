"""The supervisor of p2pd restarts it after every kind of failure, and reports why it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from peer.discovery import directory as dht
from peer.discovery.dht_node import process
from peer.discovery.dht_node.process import DhtNodeLimits
from peer.discovery.dht_node.supervisor import RebuildTimes, SupervisorTimes
from peer.discovery.directory import DhtDirectory, DirectoryListeners
from peer.discovery.multiaddr import claimed
from peer.identity import Identity
from peer.observe.process_stats import resident_bytes
from peer.observe.status.codec import to_json
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status

pytestmark = pytest.mark.processes

RUN = RunId(b"r" * 32)
LISTEN = ("/ip4/127.0.0.1/tcp/0",)
PACE = SupervisorTimes(heal=0.5, alone=0.1, rebuild=RebuildTimes(first=0.05), pulse=0.1, answer=0.5)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 30.0))


@dataclass
class Told:
    """A `Watcher` that records its calls."""

    ended: list[tuple[str, int]] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    back: list[tuple[float, int]] = field(default_factory=list)
    then: Callable[[], None] = lambda: None

    def helper_ended(self, cause: str, times: int) -> None:
        self.ended.append((cause, times))
        self.at.append(time.monotonic())
        self.then()

    def helper_back(self, seconds: float, times: int) -> None:
        self.back.append((seconds, times))


@contextlib.asynccontextmanager
async def started(folder: Path, identity: Identity | None = None, **options: Any) -> AsyncIterator[DhtDirectory]:
    identity = identity or Identity.generate()
    path = folder / f"{identity.peer_id}.key"
    path.write_bytes(identity.to_bytes())
    options = {"host_maddrs": LISTEN, "pace": PACE, **options}
    directory = await DhtDirectory(identity=identity, identity_path=path, run_id=RUN, **options).start()
    try:
        yield directory
    finally:
        await directory.close()


async def until(holds: Callable[[], object], within_s: float = 60.0) -> float:
    """Poll until the condition holds. Return the seconds that took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < within_s, "did not happen in time"
        await asyncio.sleep(0.01)
    return time.monotonic() - began


async def until_seen(reader: DhtDirectory, *others: Identity, within_s: float = 60.0) -> None:
    wanted = {identity.peer_id for identity in others}
    deadline = time.monotonic() + within_s
    while not wanted <= (await reader.peers()).keys():
        assert time.monotonic() < deadline, "was not seen in time"
        await asyncio.sleep(0.05)


def record(identity: Identity, **changes: Any) -> PeerRecord:
    now = time.time()
    made = PeerRecord(
        PeerId(identity.peer_id), RUN, ("127.0.0.1:9",), True, 1, 1, 0, 10.0, Status.TRAINING, now, now + 30.0
    )
    return replace(made, **changes)


def pid_of(directory: DhtDirectory) -> int:
    assert directory.helper_pid is not None
    return directory.helper_pid


def connections(directory: DhtDirectory) -> int:
    """Return the number of connections that its p2pd has with other nodes."""
    found = psutil.Process(pid_of(directory)).net_connections("tcp")
    return sum(one.status == psutil.CONN_ESTABLISHED for one in found)


def test_a_hung_p2pd_is_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        told = Told()
        async with started(tmp_path, listeners=DirectoryListeners(told)) as directory:
            pid, address = pid_of(directory), directory.addresses()
            os.kill(pid, signal.SIGSTOP)
            await until(lambda: told.back)
            assert "hung" in told.ended[0][0]
            assert resident_bytes(pid) == 0, "the old one is gone"
            assert pid_of(directory) != pid
            assert directory.addresses() == address

    run(scenario())


def test_a_busy_p2pd_that_owes_one_answer_is_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        told = Told()
        async with started(tmp_path, pace=replace(PACE, answer=1.0), listeners=DirectoryListeners(told)) as directory:
            node = directory._supervisor.node
            assert node is not None
            owed, answers = [1], node.answers

            async def late_once(timeout_s: float) -> None:
                if owed:
                    owed.pop()
                    raise TimeoutError
                await answers(timeout_s)

            node.answers = late_once  # type: ignore[method-assign]
            await until(lambda: not owed)
            await asyncio.sleep(3 * PACE.pulse)
            assert told.ended == []

    run(scenario())


def test_one_that_outgrows_its_bound_is_replaced_again_and_again_ever_more_slowly(tmp_path: Path) -> None:
    async def scenario() -> None:
        told = Told()
        limits, pace = DhtNodeLimits(memory=4 * 2**20), replace(PACE, rebuild=RebuildTimes(first=0.3), pulse=0.05)
        async with started(tmp_path, limits=limits, pace=pace, listeners=DirectoryListeners(told)) as directory:
            await until(lambda: to_json(directory.report())["losses"] >= 4)
            cause, times = told.ended[-1]
            assert "MB of memory, above its bound of 4.19 MB" in cause
            assert times == 4
            assert f"rebuilding, 4th time, because {cause}" in directory.trouble
            assert to_json(directory.report())["state"] == "rebuilding"
            waits = [later - earlier for earlier, later in zip(told.at, told.at[1:], strict=False)]
            assert all(wait >= 0.3 * 2**n for n, wait in enumerate(waits[-2:], 1)), waits

    run(scenario())


def test_it_runs_within_its_limits(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = DhtNodeLimits(files=200, heap=50 * 2**20, connections=40, kept=20)
        async with started(tmp_path, limits=limits) as directory:
            proc = Path(f"/proc/{pid_of(directory)}")
            (files,) = [line for line in (proc / "limits").read_text().splitlines() if "open files" in line]
            assert files.split()[3:5] == ["200", "200"]
            assert f"GOMEMLIMIT={limits.heap}".encode() in (proc / "environ").read_bytes().split(b"\0")
            command = (proc / "cmdline").read_bytes().split(b"\0")
            assert {b"-connHi=40", b"-connLo=20"} <= set(command)
            assert not [word for word in command if word.startswith(b"-dht")], "p2pd would connect with every node"
            assert b"-autonat=0" in command

    run(scenario())


def test_idle_connections_are_closed_once_rounds_are_long(tmp_path: Path) -> None:
    async def scenario() -> None:
        own, limits = Identity.generate(), DhtNodeLimits(kept=1, grace=0.1)
        async with contextlib.AsyncExitStack() as stack:

            async def start(identity: Identity | None, heal: float, **options: Any) -> DhtDirectory:
                pace = replace(PACE, heal=heal, trim=0.1)
                return await stack.enter_async_context(started(tmp_path, identity, pace=pace, **options))

            hub = await start(own, 0.1, limits=limits)
            for _ in range(3):  # these never dial a second time
                await start(None, 60.0, initial_peers=hub.addresses())
            said = record(own)
            await hub.announce(said)
            assert connections(hub) == 3
            await hub.announce(replace(said, expires_at=said.issued_at + 900.0))
            await until(lambda: connections(hub) == 1)

    run(scenario())


def test_one_that_strangers_have_filled_with_connections_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        told = Told()
        async with started(tmp_path, limits=DhtNodeLimits(files=64), listeners=DirectoryListeners(told)) as directory:
            address = directory.addresses()
            port = int(address[0].split("/")[4])
            with contextlib.ExitStack() as stack:
                for _ in range(100):
                    stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5.0))
                await until(lambda: told.back)
            assert told.ended[0][0].endswith("had all its 64 files open: too many connections")
            assert directory.addresses() == address
        assert not caplog.records, "what it says of every connection is not for our log"

    run(scenario())


def test_while_it_cannot_be_started_the_known_peers_stay_and_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'fatal: no luck today' >&2\nexit 7\n")
    broken.chmod(0o700)
    own, other = Identity.generate(), Identity.generate()
    monkeypatch.setattr(dht, "HELD_LIFE_S", 60.0)

    async def scenario() -> None:
        told = Told()
        async with (
            started(tmp_path, other) as second,
            started(tmp_path, own, initial_peers=second.addresses(), listeners=DirectoryListeners(told)) as first,
        ):
            await first.announce(record(own))
            await second.announce(record(other, expires_at=time.time() + 1.5))
            await until_seen(first, other)
            monkeypatch.setattr(process, "BINARY", broken)
            os.kill(pid_of(first), signal.SIGKILL)
            await until(lambda: len(told.ended) >= 3)
            assert "signal 9 (SIGKILL)" in told.ended[0][0]
            assert "no luck today" in told.ended[1][0]
            assert [times for _, times in told.ended[:3]] == [1, 2, 3]
            assert first.trouble.startswith("rebuilding, 3rd time, because the DHT helper (p2pd)")
            expired = time.time() + 1.6
            await until(lambda: time.time() > expired)
            (held,) = (await first.peers()).values()
            assert held.peer_id == other.peer_id
            assert held.expires_at > time.time()
            monkeypatch.setattr(process, "BINARY", None)
            await until(lambda: told.back and not first.trouble)
            async with asyncio.timeout(60):  # until it can look again and the record has expired
                while await first.peers():
                    await asyncio.sleep(0.05)
            await until_seen(second, own)

    run(scenario())


def test_held_peers_are_not_held_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = Identity.generate(), Identity.generate()

    async def scenario() -> None:
        async with started(tmp_path, own, pace=replace(PACE, rebuild=RebuildTimes(first=30.0))) as first:
            first._records.add(record(other), time.time())
            os.kill(pid_of(first), signal.SIGKILL)
            await until(lambda: first._supervisor.lost_at)
            assert len(await first.peers()) == 1
            assert first._supervisor.lost_at is not None
            later = first._supervisor.lost_at + dht.HOLD_S + 1
            assert first._known(later) == {}

    run(scenario())


@pytest.mark.parametrize("told_to", [True, False])
def test_a_port_that_was_taken_meanwhile(tmp_path: Path, told_to: bool) -> None:
    """A port that the user chose is waited for; one that p2pd chose is replaced by another."""
    with claimed(LISTEN) as given:
        pass

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            thief = stack.enter_context(socket.socket())

            def steal() -> None:
                told.then = lambda: None
                thief.bind(("127.0.0.1", int(before.split("/")[4])))
                thief.listen()

            told = Told(then=steal)
            where = given if told_to else LISTEN
            directory = await stack.enter_async_context(
                started(tmp_path, host_maddrs=where, listeners=DirectoryListeners(told))
            )
            (before,) = directory.addresses()
            os.kill(pid_of(directory), signal.SIGKILL)
            if told_to:
                await until(lambda: len(told.ended) >= 2)
                assert "another program holds this port" in told.ended[1][0]
                thief.close()
            await until(lambda: told.back)
            await until(lambda: (directory.addresses() == [before]) == told_to)

    run(scenario())


def test_a_restart_listens_where_others_know_it(tmp_path: Path) -> None:
    own = Identity.generate()

    async def scenario() -> None:
        cache = tmp_path / "seen.json"
        async with started(tmp_path, own, cache_path=cache) as directory:
            before = directory.addresses()
        async with started(tmp_path, own, cache_path=cache) as directory:
            assert directory.addresses() == before
        with socket.socket() as thief:
            thief.bind(("127.0.0.1", int(before[0].split("/")[4])))
            thief.listen()
            async with started(tmp_path, own, cache_path=cache) as directory:
                assert directory.addresses() != before

    run(scenario())


def test_a_dead_and_a_mute_bootstrap_do_not_delay_the_third(tmp_path: Path) -> None:
    async def scenario() -> None:
        with claimed(LISTEN) as nobody, socket.socket() as mute:
            mute.bind(("127.0.0.1", 0))
            mute.listen()
            dead, deaf = Identity.generate(), Identity.generate()
            async with started(tmp_path) as alive:
                peers = [
                    f"{nobody[0]}/p2p/{dead.peer_id}",
                    f"/ip4/127.0.0.1/tcp/{mute.getsockname()[1]}/p2p/{deaf.peer_id}",
                    *alive.addresses(),
                ]
                began = time.monotonic()
                async with started(tmp_path, initial_peers=peers) as joiner:
                    took = time.monotonic() - began
                    assert to_json(joiner.report())["state"] == "joined"
                    assert "refused" in joiner.contact().tried[peers[0]]
                    assert took < 0.6 * PACE.dial, took

    run(scenario())


@pytest.mark.nightly
def test_two_swarms_become_one_when_one_peer_knows_both(tmp_path: Path) -> None:
    async def scenario() -> None:
        own = [Identity.generate() for _ in range(5)]
        async with contextlib.AsyncExitStack() as stack:

            async def start(identity: Identity, *known: DhtDirectory) -> DhtDirectory:
                peers = [address for one in known for address in one.addresses()]
                made = await stack.enter_async_context(started(tmp_path, identity, initial_peers=peers))
                await made.announce(record(identity))
                return made

            left, right = await start(own[0]), await start(own[1])
            of_left, of_right = await start(own[2], left), await start(own[3], right)
            await until_seen(of_left, own[0])
            await until_seen(of_right, own[1])
            assert set(await of_left.peers()) == {own[0].peer_id}, "they do not know each other yet"
            everybody = [left, right, of_left, of_right, await start(own[4], left, right)]
            for reader, me in zip(everybody, own, strict=True):
                await until_seen(reader, *(identity for identity in own if identity is not me))

    run(scenario())


def test_ipv6(tmp_path: Path) -> None:
    listen = ("/ip6/::1/tcp/0",)

    async def scenario() -> None:
        own = Identity.generate()
        async with (
            started(tmp_path, host_maddrs=listen) as first,
            started(tmp_path, own, host_maddrs=listen, initial_peers=first.addresses()) as second,
        ):
            assert first.addresses()[0].startswith("/ip6/::1/tcp/")
            await second.announce(record(own))
            await until_seen(first, own)

    run(scenario())
