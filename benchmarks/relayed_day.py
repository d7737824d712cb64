"""Does a swarm exchange for a day when nine of ten homes let nothing in and no hole can be punched, and what breaks
first when its relays are small?

Promises 2, 8 and 10, as the journals and the network show them. Bounds: with relays of 128 kB/s at least 95 % of the
due rounds are exchanged, nothing is broken, and the ledger balances. About a quarter of an hour of one core.

    python -m benchmarks.relayed_day [--hours 24] [--peers 64] [--json FILE] [--results]

64 simulated peers, 58 of them behind symmetric NATs. The six open ones and one node of the operator relay. The model
has 4 million parameters, `sync_every` is 600 s, and the trainer waits for its swap (`noloco`). Shorter runs show the
effect of two rules by leaving them out. Without the first, no relay attests the address of a closed peer, so strangers
behind relays share the places of one address block. Without the second, relays accept every swap, however slow all
swaps become."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from unittest import mock

from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.codes import Code
from peer.lab.sim.swarm import SimulatedSwarm
from peer.observe import events
from peer.protocol.messages import PathKind
from peer.protocol.swarm.relay_load import RelayLoad
from tests.simulation.closed import ClosedPlay, ClosedSwarm, play_closed

CAPS = (128e3, 64e3, 32e3, 16e3)
AIM, LEAST = 128e3, 95.0
SHORT_HOURS = 6.0
HEADS = [
    "relay cap, kB/s",
    "exchanged, %",
    "direct",
    "relayed",
    "no room",
    "too slow",
    "swap, median s",
    "computing, %",
    "relays used, %",
    "spread",
    "why not",
]
ABOUT = Benchmark(
    "relayed_day",
    "Does a swarm exchange for a day when nine of ten homes let nothing in, and what breaks first with small relays?",
    "2 (conservation), 8 (local progress), 10 (reasons); the simulator's half of closed homes",
    smallest="--hours 1 --peers 8",
    is_long=True,
)

Row = list[str | float | int | None]


def mute(swarm: SimulatedSwarm) -> None:
    """Make relays sign nothing about the addresses of closed peers."""
    swarm.network.relay_word = lambda relay, peer, now: None


def take_all() -> AbstractContextManager[object]:
    """Make relays accept every swap."""
    return mock.patch.object(RelayLoad, "refusal_reason", return_value="")


def played(
    given: ClosedSwarm,
    watch: Callable[[SimulatedSwarm], None] = lambda swarm: None,
    within: AbstractContextManager[object] | None = None,
) -> tuple[ClosedPlay, Row]:
    swarms = list[SimulatedSwarm]()

    def both(swarm: SimulatedSwarm) -> None:
        swarms.append(swarm)
        watch(swarm)

    with within or nullcontext():
        play = play_closed(given, both)
    codes = [e.code for peer in swarms[0].peers for e in peer.events if isinstance(e, events.PartnerFailed)]
    report = play.report
    used = sum(play.relayed_bytes) / (len(play.relayed_bytes) * given.cap * given.hours * 3600)
    why = play.why_not.most_common(1)
    row: Row = [
        given.cap / 1e3,
        100 * play.exchanged,
        play.paths[PathKind.DIRECT],
        play.paths[PathKind.RELAYED],
        codes.count(Code.RELAY_BUSY),
        len(codes) - codes.count(Code.RELAY_BUSY),
        report.exchange_s_median,
        100 * report.compute_utilization,
        100 * used,
        report.spread,
        why[0][0] if why else "",
    ]
    print(*row, f"{play.processor_s:.0f} s of processor", *play.broken[:3], flush=True)
    return play, row


def show(given: argparse.Namespace) -> bool:
    swarm = ClosedSwarm(peers=given.peers, hours=given.hours)
    days = [played(replace(swarm, cap=cap)) for cap in CAPS]
    hours = min(SHORT_HOURS, given.hours)
    silent = played(replace(swarm, cap=AIM, hours=hours), mute)
    greedy = [played(replace(swarm, cap=cap, hours=hours), within=take_all()) for cap in CAPS[1:3]]
    plays = [play for play, _ in (*days, silent, *greedy)]
    aim, _ = days[CAPS.index(AIM)]
    figures = [
        Figure("exchanged of the due rounds, relays of 128 kB/s", "%", 100 * aim.exchanged, at_least=LEAST),
        Figure("ledger, off by, all runs", "", sum(play.report.ledger_imbalance for play in plays), 0),
        Figure("promises broken, all runs", "", sum(len(play.broken) for play in plays), 0),
    ]
    tables = [
        Table(f"{given.hours:g} hours", HEADS, [row for _, row in days]),
        Table(f"{hours:g} hours, no relay says where a closed peer calls from", HEADS, [silent[1]]),
        Table(f"{hours:g} hours, relays take every swap", HEADS, [row for _, row in greedy]),
    ]
    return publish(given, ABOUT, figures, *tables)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--peers", type=int, default=64)
    raise SystemExit(not show(parsed(parser, ABOUT)))


if __name__ == "__main__":
    main()
