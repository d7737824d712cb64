"""Nothing reads the values of an exchange after its context is left. The tests overwrite each buffer when it is
returned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from peer.exchange.buffers import Buffers
from peer.exchange.strategy import ExchangeResult
from peer.lab.sim.setting import SwarmSetting, layout_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.observe import events
from peer.outer.values import MeanGradient, PartnerParams
from peer.ports.trainer import WorkSnapshot
from peer.protocol.schedule import RoundClock
from peer.rounds.commit import RoundCommitter
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.support.invariants import Witness

PEERS, ROUNDS, ROUND_S = 3, 6, 20.0
METHODS: dict[str, dict[str, Any]] = {
    "noloco": {"preset": "noloco"},
    "noloco, consensus apart": {"preset": "noloco", "consensus": 0.4},
    "noloco at seven bits": {"preset": "noloco", "codec": "modulo7"},
    "streaming-noloco": {"preset": "streaming-noloco"},
    "diloco": {"preset": "diloco"},
    "streaming-diloco": {"preset": "streaming-diloco"},
}


def play(chosen: dict[str, Any]) -> tuple[list[str], list[bytes]]:
    """Play a simulation. Return the violations that its checks found, and the final states."""
    method = resolve(SyncSection(clock="seconds", sync_every=ROUND_S, **chosen))
    exchanged = 0

    async def main() -> tuple[Witness, list[bytes]]:
        nonlocal exchanged
        swarm = SimulatedSwarm(
            PEERS,
            SwarmSetting(
                method=method,
                rounds=RoundClock("seconds", method.sync_every, method.fragments, EPOCH),
                total_rounds=ROUNDS,
                seed=3,
                layout=layout_of(method, 4 * 128),
                min_peers=PEERS,
                eval_every=1,
            ),
            step_seconds=2.0,
        )
        witness = Witness(swarm)
        await swarm.run([])
        exchanged = sum(
            isinstance(e, events.RoundEnded) and e.outcome == "exchanged" for p in swarm.peers for e in p.events
        )
        return witness, [p.outer.digest(f) for p in swarm.peers for f in range(len(p.layout.fragments))]

    witness, states = run_virtual(main())
    assert exchanged >= ROUNDS
    return witness.broken(), states


@contextmanager
def spoilt(self: Buffers) -> Iterator[Tensor]:
    """`Buffers.acquire`, which overwrites the buffer on return."""
    with acquire(self) as buffer:
        try:
            yield buffer
        finally:
            buffer.fill_(torch.nan)


acquire = Buffers.acquire


@pytest.mark.parametrize("name", METHODS)
def test_spoiling_what_comes_back_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    once = play(METHODS[name])
    monkeypatch.setattr(Buffers, "acquire", spoilt)
    assert play(METHODS[name]) == once
    assert once[0] == []


@pytest.mark.parametrize("name", METHODS)
def test_values_lie_in_what_is_lent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that the previous test can fail: the values are stored in the lent buffers."""
    lent = list[Tensor]()
    once = RoundCommitter._step_and_journal

    async def noted(self: RoundCommitter, work: WorkSnapshot, got: ExchangeResult) -> None:
        if got.outcome == "exchanged":
            assert isinstance(got.values, PartnerParams | MeanGradient)
            lent.append(got.values.partner if isinstance(got.values, PartnerParams) else got.values.gradient)
        await once(self, work, got)

    monkeypatch.setattr(RoundCommitter, "_step_and_journal", noted)
    monkeypatch.setattr(Buffers, "acquire", spoilt)
    play(METHODS[name])
    assert lent
    assert all(bool(values.isnan().all()) for values in lent)


def test_a_step_after_the_context_is_left_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange, step = RoundCommitter.exchange_and_step, RoundCommitter._step_and_journal
    kept: dict[RoundCommitter, tuple[WorkSnapshot, ExchangeResult]] = {}

    async def keep(self: RoundCommitter, work: WorkSnapshot, got: ExchangeResult) -> None:
        kept[self] = work, got

    async def late(self: RoundCommitter, *terms: Any) -> Any:
        merge = await exchange(self, *terms)
        if self in kept:
            await step(self, *kept.pop(self))
        return merge

    monkeypatch.setattr(Buffers, "acquire", spoilt)
    monkeypatch.setattr(RoundCommitter, "_step_and_journal", keep)
    monkeypatch.setattr(RoundCommitter, "exchange_and_step", late)
    with pytest.raises(AssertionError, match="not finite"):
        play(METHODS["noloco"])
