"""How much does a hostile caller cost a peer? Linux only.

Promises 11 (no stranger decides), 6 (every length is bounded) and 7 (the trainer does not wait). Bounds for the
attacked peer: its memory grows by at most 64 MiB. In turns of 90 s or more, its trainer waits for exchanges at most 5 %
of the time. No round ends more than 2 s after its deadline. Six minutes.

    python -m benchmarks.hostile [--seconds 90] [--turns 2] [--speed 0.5] [--pin 2] [--one] [--json FILE] [--results]

A bootstrap node and two peers run as real processes. Calm turns and hostile turns alternate. In a hostile turn one
caller does to the first peer all that `benchmarks.attacks` knows. It sends wrong checksums, shapes, layouts and lengths
of 2**40. It sends NaN, infinity, absurd norms, empty streams, garbage, half a payload, and nothing. It forges and
replays records, proofs and tokens, and names a foreign run. It holds idle connections and streams, and floods the peer
with calls and large messages.

The attacker and its target share the machine. A slower trainer may therefore be due to the attacker's own work, so its
CPU seconds are reported too, and the target's trainer works only `--speed` of the time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.attacks import LIES, Target, attack, keys_below
from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.errors import PeerError
from peer.identity import Identity, load_or_create
from peer.lab.localswarm.processes import Daemon, start_bootstrap, start_peer
from peer.observe.event_codec import read_lines
from peer.observe.events import CallerRefused, Event, RoundDue, RoundEnded, StandingLowered
from peer.protocol.messages import PeerId, RunId
from peer.run.home import Home
from peer.run.manifest import write_new
from peer.run.model_layout import layout_for
from peer.run.resolve import resolve

RSS_MIB, WAITING, LATE_S = 64.0, 0.05, 2.0
"""Bounds: memory growth in MiB, share of the trainer's time spent waiting, seconds after a round's deadline."""
ABOUT = Benchmark(
    "hostile",
    "How much does a hostile caller cost a peer?",
    "11 (no stranger decides), 6 (every length is bounded), 7 (the trainer does not wait)",
    smallest="--seconds 10 --turns 1",
    is_long=True,
)
SETTINGS = ["sync.clock=seconds", "sync.sync_every=10", "sync.codec=fp32", "train.total_rounds=100000"]
SETTINGS += ["train.eval_every=1000"]


# -- what is measured --------------------------------------------------------------------------------------------------


@dataclass
class Turn:
    hostile: bool
    began: float
    tokens_per_s: float = 0.0
    seconds_waiting: float = 0.0
    """Seconds that the trainer waited for exchanges."""
    tokens_per_training_s: float = 0.0
    attacker_cpu_s: float = 0.0
    daemon_cpu_s: float = 0.0
    who: dict[str, float] = field(default_factory=dict)
    """CPU seconds of each of the victim's processes, and of its whole core."""
    rss_mb: list[float] = field(default_factory=list)
    ended: float = 0.0


def rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """Return the pids of a process and its descendants."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def pin(pid: int, cores: set[int]) -> None:
    """Pin a process and its descendants to these cores. Later children inherit it."""
    for one in family(pid):
        for task in Path(f"/proc/{one}/task").iterdir():
            os.sched_setaffinity(int(task.name), cores)


def who_worked(pid: int) -> dict[str, float]:
    """Return the CPU seconds used so far: by kind of the victim's processes, and of its core if it is pinned to one."""
    spent: dict[str, float] = defaultdict(float)
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
    raise SystemExit(f"the victim does not answer:\n{daemon.log_tail()}")


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
    turn.who = {name: seconds - who.get(name, 0.0) for name, seconds in who_worked(process.pid).items()}
    turn.attacker_cpu_s = time.process_time() - cpu
    done = {name: after[name] - before[name] for name in ("tokens", "seconds_training", "seconds_waiting")}
    turn.tokens_per_s = done["tokens"] / (turn.ended - began)
    turn.tokens_per_training_s = done["tokens"] / done["seconds_training"]
    turn.seconds_waiting = done["seconds_waiting"]
    sampling.cancel()
    await asyncio.wait({sampling})


def rounds_in(journal: list[tuple[Event, float]], turn: Turn) -> list[tuple[str, float]]:
    """Return (outcome, seconds after its deadline) of the rounds that ended in this turn. Negative: before the
    deadline."""
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
    raise SystemExit(f"{daemon.name} did not begin to exchange:\n{daemon.log_tail()}")


async def measure(folder: Path, seconds: float, turns: int, speed: float, own_cores: int, one: bool) -> dict[str, Any]:
    # with the operator's key the node may sign the run's start
    operator = load_or_create(Home(folder / "bootstrap").identity)
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
    """Pin the victim to the first `own` cores, and all other processes, including this one, to the rest."""
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
    """Return the trainer's CPU seconds per second. On one core this is what all other processes leave to it,
    independent of how fast the core is at the moment."""
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
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=90.0, help="Of one turn.")
    parser.add_argument("--turns", type=int, default=2, help="Pairs of A and B.")
    parser.add_argument("--speed", type=float, default=0.5, help="Of the victim's trainer.")
    parser.add_argument("--pin", type=int, default=0, help="The victim on so many cores, all else on the last one.")
    parser.add_argument("--one", action="store_true", help="One hostile key in all, instead of eleven and fresh ones.")
    given = parsed(parser, ABOUT)
    with tempfile.TemporaryDirectory(prefix="peer-hostile-") as name:
        body = asyncio.run(measure(Path(name), given.seconds, given.turns, given.speed, given.pin, given.one))
    print(json.dumps(body, indent=2))
    late = [body[f"{name}_late_s"].get("worst", 0.0) for name in ("calm", "hostile")]
    figures = [
        Figure("memory above the beginning", "MiB", body["rss_growth_mb"], RSS_MIB),
        Figure("trainer's time waiting for exchanges, hostile", "", body["hostile_waiting_share"], WAITING),
        Figure("trainer's time waiting for exchanges, calm", "", body["calm_waiting_share"]),
        Figure("latest round after its deadline, hostile", "s", late[1], LATE_S),
        Figure("latest round after its deadline, calm", "s", late[0]),
        Figure("processor time the trainer lost", "", body["trainer_cpu_lost"]),
    ]
    told = [*body["locked_with_a_liar"].items(), *body["codes"].items()]
    publish(given, ABOUT, figures, Table("lies told to a lock, and refusals", ["", "times"], [[*one] for one in told]))


if __name__ == "__main__":
    main()
