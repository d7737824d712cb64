"""The production coordinator, matching, exchange and outer state under the virtual clock against the equations: params,
outer params and momentum of every replica after every inner step. Only the pairs and groups are read from the journals.
The reference computes every number itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from peer.lab.sim.fake_trainer import FakeTrainer
from peer.lab.sim.links import Link
from peer.lab.sim.setting import SwarmSetting, SwarmWorld
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.methods.method import Method
from peer.observe.events import RoundEnded
from peer.protocol.model.layout import Layout
from peer.protocol.round_lengths import round_of, slots_of
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.golden.driver import layout_of
from tests.golden.reference import Game, Span, check, play

STEP_S = 1.0
CUTS = {1: ((0, 700),), 2: ((0, 300), (300, 700)), 3: ((0, 129), (129, 400), (400, 700))}
"""Of which a group's members own several shards."""
PERIODS, EAGER_PERIODS = 3, 10


def periods_of(method: Method) -> int:
    return EAGER_PERIODS if method.eager else PERIODS


def spans_of(method: Method) -> tuple[Span, ...]:
    return CUTS[method.fragments]


def rounds_of(method: Method) -> int:
    return round_of(method.growth, periods_of(method) * method.fragments)


class ScriptedTrainer(FakeTrainer):
    """A trainer whose inner steps add the given updates, [T, N] fp32, and nothing after the last one."""

    def __init__(self, layout: Layout, clock: VirtualClock, updates: NDArray[np.float64]) -> None:
        super().__init__(layout, clock, step_seconds=STEP_S)
        self._updates = torch.tensor(updates, dtype=torch.float32)

    def _train(self, steps: int) -> float:
        for update in self._updates[self._steps : self._steps + steps]:
            self._values += update
        return 0.0

    @property
    def moment(self) -> tuple[int, NDArray[Any]]:
        """Return (steps taken, current params)."""
        self.counters()
        return self._steps, self._values.numpy().copy()


@dataclass(repr=False)
class Played:
    """The result of the production code."""

    swarm: SimulatedSwarm
    trajectory: dict[tuple[int, int], tuple[NDArray[Any], ...]]


async def _watch(swarm: SimulatedSwarm, into: dict[tuple[int, int], tuple[NDArray[Any], ...]]) -> None:
    """Record the last values between one inner step and the next. Three eighths of a step after a boundary everything
    at the boundary has happened."""
    await asyncio.sleep(3 * STEP_S / 8)
    while True:
        for peer in swarm.peers:
            assert isinstance(peer.trainer, ScriptedTrainer)
            steps, params = peer.trainer.moment
            if steps:
                outer = (peer.outer.params, peer.outer.momentum)
                into[peer.number, steps] = (params, *(values.numpy().copy() for values in outer))
        await asyncio.sleep(STEP_S / 4)


def simulate(
    method: Method,
    peers: int,
    updates: NDArray[np.float64],
    first: NDArray[np.float64],
    seed: int,
    link: Link | None = None,
) -> Played:
    """Run the production peers. `updates`: [T, M, N]. All peers make their steps at the same time."""

    async def main() -> Played:
        spans = spans_of(method)

        def trainer(number: int, layout: Layout, clock: VirtualClock) -> FakeTrainer:
            return ScriptedTrainer(layout, clock, updates[:, number])

        swarm = SimulatedSwarm(
            peers,
            SwarmSetting(
                method=method,
                rounds=method.round_clock(),
                total_rounds=rounds_of(method),
                seed=seed,
                layout=layout_of(spans),
                first=torch.tensor(first, dtype=torch.float32),
                min_peers=peers,
            ),
            SwarmWorld(links=link),
            make_trainer=trainer,
        )
        played = Played(swarm, {})
        watching = asyncio.create_task(_watch(swarm, played.trajectory))
        await swarm.run()
        watching.cancel()
        await asyncio.wait({watching})
        return played

    return run_virtual(main())


def meetings(swarm: SimulatedSwarm, rounds: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return for each round which peers exchanged, according to the journals of both sides."""
    met: list[set[tuple[int, ...]]] = [set() for _ in range(rounds)]
    number = {peer.peer_id: peer.number for peer in swarm.peers}
    for peer in swarm.peers:
        for event in peer.events:
            if isinstance(event, RoundEnded):
                others = [number[other] for other in event.partner.split()] if event.partner else []
                met[event.round].add(tuple(sorted([peer.number, *others])))
    return tuple(tuple(sorted(round_)) for round_ in met)


def game_of(method: Method, updates: NDArray[Any], first: NDArray[Any], swarm: SimulatedSwarm) -> Game:
    rounds = rounds_of(method)
    spans = spans_of(method)
    return Game(
        rule=method.rule,
        outer_lr=method.outer_lr,
        outer_momentum=method.outer_momentum,
        consensus=method.consensus,
        sync_every=int(method.sync_every),
        delay=int(method.sync_every - 1 if method.eager else method.fragment_sync_delay),
        alpha=method.fragment_update_alpha,
        eager=method.eager,
        fragments=spans,
        start=np.repeat(first[None], updates.shape[1], axis=0),
        updates=updates,
        meetings=meetings(swarm, rounds),
        slots=tuple(slots_of(method.growth, round_) for round_ in range(rounds)),
        tokens=np.ones((rounds, updates.shape[1])) if method.topology == "group" else None,
    )


def until_held(trajectory: dict[tuple[int, int], Any], game: Game) -> dict[tuple[int, int], Any]:
    """Remove the moments of results that arrive after the last step, where the trainer is held and merges at once."""
    last = len(game.updates)
    return {at: moment for at, moment in trajectory.items() if at[1] < last}


def drawn(seed: int, method: Method, peers: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    elements = spans_of(method)[-1][1]
    updates = 0.1 * rng.normal(size=(int(method.sync_every) * periods_of(method), peers, elements))
    return updates.astype(np.float32).astype(np.float64), rng.normal(size=elements).astype(np.float32).astype(float)


def cases() -> dict[str, tuple[SyncSection, int]]:
    made: dict[str, tuple[SyncSection, int]] = {}

    def case(name: str, peers: int, **sync: Any) -> None:
        codecs = {} if sync["preset"] == "none" else {"codec": "fp32"}
        if sync["preset"].endswith("diloco"):
            codecs["result_codec"] = "fp32"
        made[name] = SyncSection(**({"clock": "steps", "sync_every": 6} | codecs | sync)), peers

    for peers in (2, 3, 5):
        case(f"noloco of {peers}", peers, preset="noloco")
    case("noloco, consensus apart", 4, preset="noloco", consensus=0.4)
    case("none", 2, preset="none")
    case("snoo", 2, preset="snoo")
    case("gasloc of 3", 3, preset="gasloc", outer_lr=0.8, consensus=0.9)
    case("streaming-gasloc", 3, preset="streaming-gasloc", fragments=2, fragment_sync_delay=2)
    for fragments, delay, alpha in [(2, 0, 0.0), (2, 1, 0.5), (2, 3, 0.0), (3, 1, 0.0), (3, 2, 0.5), (3, 3, 1.0)]:
        if alpha < 1:
            name = f"streaming-noloco, {fragments} fragments, delay {delay}, alpha {alpha}"
            layout = {"fragments": fragments, "fragments_apart": False, "fragment_layout": "balanced"}
            merge = {"fragment_sync_delay": delay, "fragment_update_alpha": alpha}
            case(name, 3, preset="streaming-noloco", **layout, **merge)
    case(
        "streaming-noloco, consensus apart",
        4,
        preset="streaming-noloco",
        consensus=0.4,
        fragments=2,
        fragment_sync_delay=2,
    )
    for peers in (2, 4, 5):
        case(f"diloco of {peers}", peers, preset="diloco", outer_momentum=0.9)
    for fragments, delay, alpha in [(2, 0, 0.0), (2, 1, 0.5), (2, 3, 0.0), (3, 2, 0.5), (3, 3, 0.0)]:
        name = f"streaming-diloco, {fragments} fragments, delay {delay}, alpha {alpha}"
        layout = {"fragments": fragments, "fragments_apart": False, "fragment_layout": "balanced"}
        merge = {"fragment_sync_delay": delay, "fragment_update_alpha": alpha}
        case(name, 3, preset="streaming-diloco", **layout, **merge)
    uneven = {"sync_every": 7, "fragments": 3, "fragments_apart": False, "fragment_layout": "balanced"}
    case("streaming-noloco, rounds of two and of three steps", 3, preset="streaming-noloco", **uneven)
    case("streaming-diloco, rounds of two and of three steps", 3, preset="streaming-diloco", **uneven)
    case("qsr", 3, preset="qsr", growth=[[1, 2]])
    case("noloco, rounds that grow", 3, preset="noloco", growth_lr=1.0, growth=[[0, 2], [1, 1]])
    case("streaming-diloco, rounds that grow", 3, preset="streaming-diloco", growth_lr=1.0, growth=[[1, 2], [3, 1]])
    return made


@pytest.mark.parametrize(("sync", "peers"), cases().values(), ids=cases())
def test_the_coordinator_plays_the_equations(sync: SyncSection, peers: int) -> None:
    method = replace(resolve(sync), acceptance="")  # every partner is taken as it comes
    updates, first = drawn(peers, method, peers)
    played = simulate(method, peers, updates, first, seed=peers)
    game = game_of(method, updates, first, played.swarm)
    expected = {at: moment for at, moment in play(game).items() if at[1] < len(updates)}
    check(until_held(played.trajectory, game), expected, game)
    if method.topology == "group":
        everybody = tuple(range(peers))
        assert all(round_ == (everybody,) for round_ in game.meetings), game.meetings
    if method.topology == "pair":
        pairs = sum(len(meeting) == 2 for round_ in game.meetings for meeting in round_)
        assert pairs >= rounds_of(method) // method.fragments * (peers // 2)
