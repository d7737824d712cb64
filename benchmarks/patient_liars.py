"""How far can a liar with patience widen the radius that its partners allow?

Promise 11: no stranger decides. A radius follows the distances of former partners, so a liar can feed it, a little more
in each round. Bound: the cap of `peer.protocol.pair.clip`, which is our own largest work of the last 16 rounds, times
1.25 * 3 * sqrt(2), times the ratio of tokens. Some four minutes.

    python -m benchmarks.patient_liars [--rounds 200] [--set KEY=VALUE] [--json FILE] [--results]

Memory alone: partners that know the radius send values that are as far away as it remembers at all. Some of them claim
twenty times the tokens besides. In a swarm of tiny models one of eight lies: `drift` sends its own params and more in
one direction, as far as its own work goes, `push` as far as any values are decoded."""

from __future__ import annotations

import math
import random
import statistics
from collections import deque
from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor

from benchmarks.lying_partners import PEERS, percent, simulation_of
from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.exchange.build import SendHooks, make_strategy
from peer.exchange.pair.acceptance import CHECK, CLIP
from peer.exchange.validation import FAR, rms
from peer.lab.attack.liar import LyingSwap
from peer.lab.attack.lies import LIES, NEAR_THE_LIMIT, Lie
from peer.lab.attack.report import mean_last_loss
from peer.lab.bench.tables import Cell
from peer.lab.sim.run import ALL_HONEST, SimulationRoles, simulate
from peer.lab.sim.swarm import SimulatedSwarm
from peer.observe import events
from peer.protocol.messages import RoundKey
from peer.protocol.pair.clip import APART, CAP, MOST_RATIO, REMEMBERED, SLACK, ClipMemory

ABOUT = Benchmark(
    "patient_liars",
    "How far can a liar with patience widen the radius that its partners allow?",
    "11 (no stranger decides; one liar of eight costs the honest at most 2 % of loss)",
    smallest="--rounds 4",
)
MOST = SLACK * CAP * APART
LIAR = 4
SPREAD = 0.2
"""Standard deviation of the logarithm of an honest peer's work from round to round."""
TOKENS = 1000
WHOLE_CAP = 1.001
"""1 plus rounding: the radius reached the cap."""
HEARD = 0.25
"""With a larger share, liars are sometimes more than half of the last 16 partners, and their claimed tokens count."""
SHARES = {"1 of 7 partners": 1 / 7, "3 of 7 partners": 3 / 7, "every partner": 1.0}


def remembered(share: float, claims: float, rounds: int, seed: int = 1) -> list[float]:
    """Return the radius of each round divided by the largest work of the last 16. `share`: of liars among partners.
    `claims`: tokens that they claim, as a multiple of ours."""
    rng, memory, work, found = random.Random(seed), ClipMemory(), deque[float](maxlen=REMEMBERED), list[float]()
    for _ in range(rounds):
        work.append(math.exp(rng.gauss(0.0, SPREAD)))
        lies = rng.random() < share
        memory.ratio.observe(round(TOKENS * (claims if lies else 1.0)), TOKENS)
        away = math.inf if lies else APART * math.exp(rng.gauss(0.0, SPREAD))
        found.append(memory.of(0).clip(work[-1], away, memory.ratio.value).radius / max(work))
    return found


def _push(key: RoundKey, own: Tensor, outer: Tensor) -> Tensor:
    """Push always in the same direction, as far as values can be decoded."""
    direction = torch.ones_like(own)
    return own.add(direction, alpha=NEAR_THE_LIMIT * FAR * rms(own))


def played(lie: Lie | None, acceptance: str, rounds: int, settings: list[str]) -> list[SimulatedSwarm]:
    """Simulate the swarm. `lie` None: all peers are honest."""
    wish = simulation_of(1, rounds, ["sync.preset=gossip", f"sync.acceptance={acceptance}", *settings])
    roles, swarms = ALL_HONEST, list[SimulatedSwarm]()
    if lie is None:
        roles = SimulationRoles(numbers=tuple(number for number in range(PEERS) if number != LIAR))
    else:
        swaps = SendHooks(swaps=lambda honest: LyingSwap(honest, lie))
        roles = SimulationRoles(liars={LIAR: partial(make_strategy, hooks=swaps)})
    simulate(wish, swarms.append, roles)
    return swarms


def judged(swarm: SimulatedSwarm, liar: str) -> Iterable[list[events.PartnerJudged]]:
    """Yield each honest peer's judgements in order."""
    for peer in swarm.peers:
        if peer.peer_id != liar:
            yield [event for event in peer.events if isinstance(event, events.PartnerJudged)]


def widest(each: Iterable[list[events.PartnerJudged]]) -> float:
    """Return the largest radius divided by the largest own work of the last exchanges."""
    found = 0.0
    for seen in each:
        work = deque[float](maxlen=REMEMBERED)
        for event in seen:
            work.append(event.work)
            found = max(found, event.radius / max(work))
    return found


def last_work(each: Iterable[list[events.PartnerJudged]]) -> float:
    """Return the mean of the own work in the last exchanges."""
    return statistics.fmean(event.work for seen in each for event in seen[-REMEMBERED:])


def in_swarms(rounds: int, settings: list[str]) -> tuple[list[Figure], Table]:
    """Simulate each lie, with and without the check."""
    figures, rows = list[Figure](), list[list[Cell]]()
    for acceptance in (CHECK, CLIP):
        (alone,) = played(None, acceptance, rounds, settings)
        usual, loss = last_work(judged(alone, "")), mean_last_loss(peer.events for peer in alone.peers)
        for name, lie in (("drift", LIES["drift"](1)), ("push", _push)):
            (swarm,) = played(lie, acceptance, rounds, settings)
            liar = swarm.peers[LIAR].peer_id
            seen = list(judged(swarm, liar))
            of_liar = [event.verdict for one in seen for event in one if event.peer == liar]
            harmed = mean_last_loss(peer.events for peer in swarm.peers if peer.peer_id != liar)
            row: list[Cell] = [name, acceptance, widest(seen), last_work(seen) / usual, percent(harmed, loss)]
            rows.append([*row, len(of_liar), of_liar.count("refused")])
            print(*rows[-1], flush=True)
            figures.append(Figure(f"swarm, {name}, {acceptance}", "of the cap", widest(seen) / MOST, WHOLE_CAP))
    heads = ["lie", "acceptance", "radius over work", "work over that alone", "% of loss", "met the liar", "refused it"]
    return figures, Table("one of eight lies", heads, rows)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    given = parsed(parser, ABOUT)
    torch.set_num_threads(1)
    figures, rows = list[Figure](), list[list[Cell]]()
    for name, share in SHARES.items():
        for claims in (1.0, MOST_RATIO):
            found = remembered(share, claims, given.rounds)
            cap = MOST * (claims if share > HEARD else 1.0)
            figures.append(Figure(f"{name}, tokens times {claims:g}", "of the cap", max(found) / cap, WHOLE_CAP))
            rows.append([name, claims, max(found), statistics.fmean(found[-50:]), cap])
            print(*rows[-1], flush=True)
    heads = ["liars", "tokens times", "largest", "mean of the last 50", "cap"]
    more, table = in_swarms(given.rounds, given.settings)
    publish(given, ABOUT, figures + more, Table("radius in memory, over own work", heads, rows), table)


if __name__ == "__main__":
    main()
