"""Pairs with one liar: its params move no partner far, and honest partners are accepted as before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import pytest
from torch import Tensor

from peer.codec.stream import Flat
from peer.exchange.pair.strategy import PairSession
from peer.lab.sim.setting import SwarmSetting, peer_id_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.tiny_model import TENSORS, TinyTrainer, first_params, loss_of
from peer.lab.sim.virtual_clock import run_virtual
from peer.observe import events
from peer.ports.trainer import WorkSnapshot
from peer.protocol.ledger import WorkShare
from peer.protocol.model.layout import Layout
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.support.seeds import nightly

PEERS, ROUNDS, STEPS, SEED = 8, 20, 10, 1
Lie = Callable[[Tensor, Tensor], Tensor]
"""Function of a peer's params and outer_params that returns the params which the liar sends."""
LIES: dict[str, Lie] = {
    "flip": lambda params, outer: 2 * outer - params,
    "x-10": lambda params, outer: outer - 10 * (params - outer),
    "negate": lambda params, outer: -params,
}


class Played:
    """A swarm of tiny models whose first peer sends false params, and trains honestly itself."""

    def __init__(self, lie: str, acceptance: str) -> None:
        asked = cast(Any, acceptance)
        section = SyncSection(preset="noloco", clock="steps", sync_every=STEPS, codec="bf16", acceptance=asked)
        method = resolve(section)
        layout, sent, liar = Layout.whole(TENSORS), PairSession._sent, peer_id_of(0)

        def lying(session: PairSession, work: WorkSnapshot, cut: WorkShare) -> Flat:
            outer = session._pairs.outer.fragment(work.key.fragment)
            honest = not lie or session._pairs.plan.me != liar
            return sent(session, work, cut) if honest else LIES[lie](work.params, outer)

        async def main() -> None:
            swarm = SimulatedSwarm(
                PEERS,
                SwarmSetting(
                    method=method,
                    rounds=method.round_clock(),
                    total_rounds=ROUNDS,
                    seed=SEED,
                    layout=layout,
                    first=first_params(SEED, layout),
                    min_peers=PEERS,
                ),
                make_trainer=lambda number, layout, clock: TinyTrainer(
                    layout, clock, step_seconds=0.1, seed=SEED, data=str(number)
                ),
            )
            await swarm.run()
            self.losses = [loss_of(peer.outer.params, layout, SEED) for peer in swarm.peers]
            judged = [
                event for peer in swarm.peers[1:] for event in peer.events if isinstance(event, events.PartnerJudged)
            ]
            self.of_liar = Counter(event.verdict for event in judged if event.peer == liar)
            self.of_honest = Counter(event.verdict for event in judged if event.peer != liar)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PairSession, "_sent", lying)
            run_virtual(main())

    @property
    def honest(self) -> float:
        return sum(self.losses[1:]) / (PEERS - 1)


@cache
def played(lie: str, acceptance: str) -> Played:
    return Played(lie, acceptance)


def test_one_liar_of_eight_harms_a_run_that_takes_whatever_is_finite() -> None:
    """Without a check the liar must do harm, or the other tests of this module would show nothing."""
    assert played("x-10", "finite").honest > 1.1 * played("", "finite").honest


@pytest.mark.parametrize("lie", ["x-10", *nightly(["flip", "negate"])])
def test_clipped_lies_cost_little(lie: str) -> None:
    alone, lied = played("", "finite"), played(lie, "clip")
    assert lied.honest < 1.05 * alone.honest, (lied.honest, alone.honest, lied.of_liar, lied.of_honest)


@pytest.mark.parametrize("lie", ["flip", *nightly(["x-10", "negate"])])
def test_checked_lies_are_refused_and_cost_next_to_nothing(lie: str) -> None:
    alone, lied = played("", "finite"), played(lie, "check")
    assert lied.honest < 1.03 * alone.honest, (lied.honest, alone.honest, lied.of_liar, lied.of_honest)
    assert lied.of_liar["refused"] >= 0.2 * lied.of_liar.total(), lied.of_liar  # late in the run a flip is only noise
    assert lied.of_honest["refused"] <= 0.05 * lied.of_honest.total(), lied.of_honest


@pytest.mark.parametrize("acceptance", ["clip", "check"])
def test_honest_swarm_loses_nothing(acceptance: str) -> None:
    alone, judged = played("", "finite"), played("", acceptance)
    assert judged.honest < 1.005 * alone.honest
    of_all = judged.of_honest + judged.of_liar
    assert of_all["clipped"] <= 0.5 * of_all.total(), of_all
    assert of_all["refused"] <= 0.05 * of_all.total(), of_all
