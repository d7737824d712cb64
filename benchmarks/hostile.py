"""What does a hostile peer cost? A bootstrap node and two peers as real processes; in turns nothing happens (A) and one
caller does everything it should not to the first peer (B): wrong checksums, shapes, layouts, lengths of 2**40, NaN,
infinity, absurd norms, empty streams, garbage, half a payload, silence, forged and replayed records, replayed proofs
and tokens, a foreign run, idle connections and streams, floods of calls and large messages.

    python benchmarks/hostile.py [--seconds 30] [--turns 2] [--speed 0.5] [--pin 2] [--one]

Prints for the victim: growth of its resident memory, its trainer's tokens per second in B over A, when its rounds ended
against their deadlines, and which refusals it journaled. Attacker and victim share the machine: a slower trainer may
also be the attacker's own work, whose CPU seconds are printed as well. So the victim's trainer works half of the time
unless told otherwise, and there is room for both."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import secrets
import socket
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from peer.errors import PeerError
from peer.identity import Identity, load_or_create, public_key_of
from peer.lab.localswarm.processes import Daemon, start_bootstrap, start_peer
from peer.observe.event_codec import read_lines
from peer.observe.events import CallerRefused, Event, RoundDue, RoundEnded, StandingLowered
from peer.protocol.messages import Answer, Offer, PeerId, PeerRecord, RoundKey, RunId, Status, Verdict
from peer.protocol.wire.frames import HEADER, MAX_CHUNK, Kind, PayloadWriter, pack
from peer.run.manifest import write_new
from peer.run.model_layout import layout_for
from peer.run.presets import resolve
from peer.signed_record import seal
from peer.transport.grpc_transport import GrpcTransport
from peer.v1 import exchange_pb2 as pb
from tests.support.hostile_client import HostileCaller, Refused, ended

SETTINGS = ["sync.clock=seconds", "sync.sync_every=10", "sync.codec=fp32", "train.total_rounds=100000"]
SETTINGS += ["train.eval_every=1000"]
BROKEN = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError)


@dataclass
class Target:
    """Whom to attack."""

    endpoint: str
    peer: PeerId
    run: RunId
    layout: bytes
    nbytes: int
    """Of a whole payload."""
    daemon: Daemon

    only: Identity | None = None
    """The one key of the attacker; None: a fresh one for each call."""

    def caller(self, identity: Identity | None = None) -> HostileCaller:
        return HostileCaller(self.endpoint, self.peer, self.run, identity or self.only)


# -- what is sent ------------------------------------------------------------------------------------------------------


def record_of(identity: Identity, age_s: float = 0.0, endpoint: str = "") -> Callable[[RunId], bytes]:
    at, endpoints = time.time() - age_s, (endpoint,) if endpoint else ()
    me = PeerId(identity.peer_id)
    return lambda run: seal(
        PeerRecord(me, run, endpoints, bool(endpoint), 1, 1, 0, 0.0, Status.TRAINING, at, at + 100), identity
    )


async def hellos(target: Target) -> None:
    """One of each wrong Hello."""
    forged = record_of(Identity.generate())(target.run)
    wrong: list[dict[str, Any]] = [
        {"layout_digest": b"M" * 32},
        {"run_id": b"S" * 32},
        {"wire_min": 9, "wire_max": 9},
        {"clock": float("nan")},
        {"signer": Identity.generate()},
        {"signed": target.run + public_key_of(target.peer) + secrets.token_bytes(32)},
        {"record": forged},
        {"record": forged[:-1] + b"x"},
    ]
    for changes in wrong:
        async with target.caller() as caller:
            with contextlib.suppress(Refused):
                await caller.hello(**changes)
    async with target.caller() as caller:
        with contextlib.suppress(Refused):
            await caller.hello(record=record_of(caller.identity, age_s=60.0)(target.run))


async def calls(target: Target) -> None:
    """Calls with an old token and without one, large messages, and streams that say nothing."""
    async with target.caller() as caller:
        for token in (b"", b"x" * 32) * 10:
            with contextlib.suppress(Refused):
                await caller.unary("Offer", token)
        with contextlib.suppress(Refused):
            token = await caller.hello()
            large = [asyncio.create_task(caller.unary("Offer", token, b"\0" * MAX_CHUNK)) for _ in range(32)]
            idle = [caller.open(method, token) for method in ("Offer", "Swap", "FetchPiece") for _ in range(8)]
            await asyncio.gather(*large, return_exceptions=True)
            await asyncio.gather(*(ended(call) for call in idle))


async def idlers(target: Target) -> None:
    """Connections that never shake hands, and Hellos in which only a large half is said."""
    host, _, port = target.endpoint.rpartition(":")
    sockets = [socket.create_connection((host, int(port)), timeout=2) for _ in range(100)]
    async with target.caller() as caller:
        streams = [caller.channel.stream_stream("/peer.v1.Exchange/Hello")(timeout=20) for _ in range(80)]
        body = pb.HelloRequest(open=pb.HelloOpen(record=b"\0" * (MAX_CHUNK - 1000))).SerializeToString()
        await asyncio.gather(*(stream.write(body) for stream in streams), return_exceptions=True)
        await asyncio.gather(*(ended(stream) for stream in streams))
    await asyncio.sleep(2)
    for opened in sockets:
        opened.close()


def opening(round_: int, nbytes: int) -> bytes:
    return pack(Kind.OPEN, 0, pb.SwapOpen(round=round_, codec="fp32", nbytes=nbytes).SerializeToString())


def constant(value: float, nbytes: int) -> list[bytes]:
    """A well-formed payload of one value."""
    data, writer = np.full(nbytes // 4, value, dtype="<f4").tobytes(), PayloadWriter()
    frames = [writer.chunk(data[at : at + MAX_CHUNK]) for at in range(0, nbytes, MAX_CHUNK)]
    return [*frames, writer.end()]


LIES: dict[str, Callable[[int, int], list[bytes]]] = {
    "checksum": lambda r, n: [opening(r, n), HEADER.pack(b"PEER", 1, 2, 0, 0, 8, 1) + b"12345678"],
    "shape": lambda r, n: [opening(r, n - 4)],
    "2**40": lambda r, n: [opening(r, 2**40)],
    "empty": lambda r, n: [opening(r, 0), pack(Kind.END, 0, b"\0" * 32)],
    "NaN": lambda r, n: [opening(r, n), *constant(float("nan"), n)],
    "infinity": lambda r, n: [opening(r, n), *constant(float("inf"), n)],
    "norm": lambda r, n: [opening(r, n), *constant(1e6, n)],
    "garbage": lambda r, n: [opening(r, n), secrets.token_bytes(1000)],
    "half": lambda r, n: [opening(r, n), constant(0.0, n)[0]],
    "nothing": lambda r, n: [opening(r, n)],
    "leaves": lambda r, n: [opening(r, n)],
}


class Liar:
    """A peer that says yes to every offer: the victim dials it, is locked, and then hears a lie."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.locked: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_hello(self, record: PeerRecord) -> None: ...

    def on_offer(self, sender: PeerId, offer: Offer) -> Answer:
        if not self.locked.done() and not offer.withdraw:
            self.locked.set_result(offer.key.round)
        return Answer(Verdict.LOCKED, eta_s=1e4)  # it will be ready, it says, as late as anybody believes

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        return Answer(Verdict.LATER)

    def on_manifest(self) -> None: ...

    def on_vouch(self, about: PeerId) -> tuple[PeerRecord | None, float | None]:
        return None, None

    def on_amendments(self, held: int, head: bytes) -> list[tuple[bytes, bytes]]:
        return []

    def on_state(self, fresh: bool = False, wanted: str = "") -> None: ...
    def on_piece(self, snapshot: str, piece: int) -> None: ...


def keys_below(peer: PeerId, count: int) -> list[Identity]:
    """Keys whose ids are smaller than this peer's: they dial."""
    keys: list[Identity] = []
    while len(keys) < count:
        key = Identity.generate()
        keys += [key] if key.peer_id < peer else []
    return keys


async def lie(target: Target, identity: Identity, what: str, locked: Counter[str]) -> None:
    """Be a candidate until locked, and lie."""
    liar = Liar(identity)
    server = GrpcTransport(identity, target.run, liar, time.time)
    port = await server.start("127.0.0.1", 0)
    try:
        async with target.caller(identity) as caller:
            record = record_of(identity, endpoint=f"127.0.0.1:{port}")(target.run)
            token = await caller.hello(layout_digest=target.layout, record=record)
            async with asyncio.timeout(8):
                round_ = await liar.locked
            locked[what] += 1
            async with asyncio.timeout(2.5 if what == "leaves" else 30):
                await caller.swap(token, LIES[what](round_, target.nbytes), hang=True)
    except TimeoutError:  # another was chosen, or it is time to leave
        return
    finally:
        await server.close()


async def garbage(target: Target) -> None:
    """To a peer that expects nothing."""
    async with target.caller() as caller:
        await caller.swap(await caller.hello(), [secrets.token_bytes(100)])


async def lie_in_turn(target: Target, liars: dict[str, Identity], locked: Counter[str]) -> None:
    for what, identity in liars.items():
        with contextlib.suppress(Refused, OSError, *BROKEN):
            await lie(target, identity, what, locked)


def each_for_itself(target: Target, liars: dict[str, Identity]) -> list[dict[str, Identity]]:
    """The lies as they are told side by side: all of one key's come one after the other."""
    if target.only is not None:
        return [dict.fromkeys(liars, target.only)]
    return [{what: identity} for what, identity in liars.items()]


async def attack(target: Target, seconds: float, liars: dict[str, Identity], locked: Counter[str]) -> None:
    """First lies, which need Hellos; in the last third also the floods that use up our address's Hellos."""

    async def again(what: Callable[[], Awaitable[None]], after_s: float, pause_s: float) -> None:
        await asyncio.sleep(after_s)
        while True:
            with contextlib.suppress(Refused, OSError, *BROKEN):
                await what()
            await asyncio.sleep(pause_s)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for some in each_for_itself(target, liars):
                group.create_task(again(functools.partial(lie_in_turn, target, some, locked), 0.0, 0.5))
            group.create_task(again(lambda: garbage(target), 0.5, 5.0))
            group.create_task(again(lambda: hellos(target), 1.0, 10.0))
            group.create_task(again(lambda: calls(target), 2.0, 5.0))
            group.create_task(again(lambda: idlers(target), 2 * seconds / 3, 1.0))


# -- what is measured --------------------------------------------------------------------------------------------------


@dataclass
class Turn:
    hostile: bool
    began: float
    tokens_per_s: float = 0.0
    seconds_waiting: float = 0.0
    """Of the trainer, for exchanges."""
    tokens_per_training_s: float = 0.0
    attacker_cpu_s: float = 0.0
    daemon_cpu_s: float = 0.0
    who: Counter[str] = field(default_factory=Counter)
    """CPU seconds of each of the victim's processes, and of all there is on its core."""
    rss_mb: list[float] = field(default_factory=list)
    ended: float = 0.0


def rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """A process and what it started."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def pin(pid: int, cores: set[int]) -> None:
    """A process, what it started and what they will start."""
    for one in family(pid):
        for task in Path(f"/proc/{one}/task").iterdir():
            os.sched_setaffinity(int(task.name), cores)


def who_worked(pid: int) -> Counter[str]:
    """CPU seconds so far of the victim's processes, by what they are, and of its core when it is pinned to one."""
    spent: Counter[str] = Counter()
    for one in family(pid):
        words = Path(f"/proc/{one}/cmdline").read_text().split("\0")
        name = (
            "daemon"
            if one == pid
            else "p2pd"
            if "p2pd" in words[0]
            else "trainer"
            if "trainer" in str(words)
            else words[0]
        )
        spent[name] += cpu_s(one)
    if len(cores := os.sched_getaffinity(pid)) == 1:
        line = Path("/proc/stat").read_text().splitlines()[1 + min(cores)].split()[1:]
        names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
        for name, ticks in zip(names, line, strict=False):
            spent[f"core {name}"] += int(ticks) / os.sysconf("SC_CLK_TCK")
    return spent


async def sample(pid: int, into: list[float]) -> None:
    while True:
        into.append(rss_mb(pid))
        await asyncio.sleep(0.25)


async def counters(daemon: Daemon) -> dict[str, Any]:
    for _ in range(20):
        if "tokens" in (status := await daemon.status() or {}):
            return status
        await asyncio.sleep(0.5)
    raise SystemExit(f"the victim does not answer:\n{daemon.last_words()}")


async def play(turn: Turn, target: Target, seconds: float, liars: dict[str, Identity], locked: Counter[str]) -> None:
    process = target.daemon.process
    assert process is not None
    sampling = asyncio.create_task(sample(process.pid, turn.rss_mb))
    before, began, cpu = await counters(target.daemon), time.time(), time.process_time()
    turn.daemon_cpu_s, who = -cpu_s(process.pid), who_worked(process.pid)
    if turn.hostile:
        await attack(target, seconds, liars, locked)
    else:
        await asyncio.sleep(seconds)
    after, turn.ended = await counters(target.daemon), time.time()
    turn.daemon_cpu_s += cpu_s(process.pid)
    turn.who = who_worked(process.pid)
    turn.who.subtract(who)
    turn.attacker_cpu_s = time.process_time() - cpu
    done = {name: after[name] - before[name] for name in ("tokens", "seconds_training", "seconds_waiting")}
    turn.tokens_per_s = done["tokens"] / (turn.ended - began)
    turn.tokens_per_training_s = done["tokens"] / done["seconds_training"]
    turn.seconds_waiting = done["seconds_waiting"]
    sampling.cancel()
    await asyncio.wait({sampling})


def rounds_in(journal: list[tuple[Event, float]], turn: Turn) -> list[tuple[str, float]]:
    """(outcome, seconds after its deadline) of the rounds that ended in this turn; below 0: before it."""
    deadlines = {event.round: event.deadline for event, _ in journal if isinstance(event, RoundDue)}
    within = [(e, t) for e, t in journal if isinstance(e, RoundEnded) and turn.began <= t <= turn.ended]
    return [(event.outcome, t - deadlines[event.round]) for event, t in within if event.round in deadlines]


async def ready(daemon: Daemon) -> dict[str, Any]:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        status = await daemon.status()
        if status is not None and status.get("rounds", {}).get("exchanged", 0) >= 2:
            return status
        await asyncio.sleep(1)
    raise SystemExit(f"{daemon.name} did not begin to exchange:\n{daemon.last_words()}")


async def measure(folder: Path, seconds: float, turns: int, speed: float, own_cores: int, one: bool) -> dict[str, Any]:
    operator = load_or_create(folder / "operator.key")
    signed = write_new(folder / "run.toml", operator, SETTINGS)
    layout = layout_for(signed.manifest.model, resolve(signed.manifest.sync))
    bootstrap, victim, partner = (Daemon(name, folder / name) for name in ("bootstrap", "victim", "partner"))
    try:
        ticket = await start_bootstrap(bootstrap, folder / "run.toml", 2)
        await start_peer(victim, ticket, threads=1, speed=speed, min_peers=2)
        await start_peer(partner, ticket, threads=1, speed=0.2, min_peers=2)
        status = await ready(victim)
        target = Target(
            status["endpoints"][0],
            PeerId(status["peer_id"]),
            RunId(signed.run_id),
            layout.digest(),
            4 * layout.elements,
            victim,
        )
        played, locked = list[Turn](), Counter[str]()
        if own_cores:
            pin_apart(victim, own_cores)
        liars = dict(zip(LIES, keys_below(target.peer, len(LIES)), strict=True))
        target.only = next(iter(liars.values())) if one else None
        for number in range(2 * turns):
            turn = Turn(bool(number % 2), time.time())
            await play(turn, target, seconds, liars, locked)
            played.append(turn)
            shares = {name: round(s / (turn.ended - turn.began), 4) for name, s in turn.who.items()}
            print(f"{'B' if turn.hostile else 'A'}: {turn.tokens_per_s:.0f} tokens/s, CPU {shares}", flush=True)
        return report(played, read_journal(victim), await counters(victim), locked)
    finally:
        for daemon in (victim, partner, bootstrap):
            with contextlib.suppress(PeerError):
                await daemon.stop(15.0)


def pin_apart(victim: Daemon, own: int) -> None:
    """The victim on the first `own` cores, everybody else, whom we started, and we on the last."""
    cores = sorted(os.sched_getaffinity(0))
    assert victim.process is not None
    pin(os.getpid(), {cores[-1]})
    pin(victim.process.pid, set(cores[:own]))


def read_journal(daemon: Daemon) -> list[tuple[Event, float]]:
    return [line for path in daemon.home.rglob("journal*") if path.is_file() for line in read_lines(path) if line]


def codes(journal: list[tuple[Event, float]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for event, _ in journal:
        if isinstance(event, StandingLowered | CallerRefused):
            found[event.code] += event.times
    return dict(found)


def trainers_share(turns: list[Turn]) -> float:
    """CPU seconds of the trainer in a second: on one core what everything else leaves it, whatever a second is worth at
    the moment on a machine that others use too."""
    return sum(turn.who["trainer"] for turn in turns) / sum(turn.ended - turn.began for turn in turns)


def report(
    played: list[Turn], journal: list[tuple[Event, float]], status: dict[str, Any], locked: Counter[str]
) -> dict[str, Any]:
    calm, hostile = ([turn for turn in played if turn.hostile is is_hostile] for is_hostile in (False, True))
    base = statistics.median(calm[0].rss_mb)
    body: dict[str, Any] = {
        "rss_before_mb": base,
        "rss_growth_mb": max(max(turn.rss_mb) for turn in hostile) - base,
        "rss_growth_calm_mb": max(max(turn.rss_mb) for turn in calm) - base,
        "tokens_per_s_ratios": [b.tokens_per_s / a.tokens_per_s for a, b in zip(calm, hostile, strict=True)],
        "tokens_per_training_s_ratios": [
            b.tokens_per_training_s / a.tokens_per_training_s for a, b in zip(calm, hostile, strict=True)
        ],
        "trainer_cpu_lost": 1 - trainers_share(hostile) / trainers_share(calm),
        "attacker_cpu_s": sum(turn.attacker_cpu_s for turn in hostile),
        "locked_with_a_liar": dict(locked),
        "codes": codes(journal),
        "journal_lines": sum(isinstance(e, StandingLowered | CallerRefused) for e, _ in journal),
        "out_of_favour": len(status["out_of_favour"]),
    }
    body["tokens_per_s_ratio"] = statistics.median(body["tokens_per_s_ratios"])
    for name, some in (("calm", calm), ("hostile", hostile)):
        ended_rounds = [entry for turn in some for entry in rounds_in(journal, turn)]
        lateness = [late for _, late in ended_rounds]
        body[f"{name}_rounds"] = dict(Counter(outcome for outcome, _ in ended_rounds))
        body[f"{name}_daemon_cpu_share"] = sum(t.daemon_cpu_s for t in some) / sum(t.ended - t.began for t in some)
        body[f"{name}_waiting_share"] = sum(t.seconds_waiting for t in some) / sum(t.ended - t.began for t in some)
        body[f"{name}_late_s"] = {"median": statistics.median(lateness), "worst": max(lateness)} if lateness else {}
    return body


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="Of one turn.")
    parser.add_argument("--turns", type=int, default=2, help="Pairs of A and B.")
    parser.add_argument("--speed", type=float, default=0.5, help="Of the victim's trainer.")
    parser.add_argument("--pin", type=int, default=0, help="The victim on so many cores, all else on the last one.")
    parser.add_argument("--one", action="store_true", help="One hostile key in all, instead of eleven and fresh ones.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="peer-hostile-") as name:
        body = asyncio.run(measure(Path(name), options.seconds, options.turns, options.speed, options.pin, options.one))
    print(json.dumps(body, indent=2))


if __name__ == "__main__":
    main()
