"""Every valid combination of topology, rule, schedule and codec works: peers of the simulator with the tiny model make
three exchanges of each fragment and break no promise."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, get_args

import pytest
import torch

from peer.exchange.group import radial
from peer.lab.sim.setting import SwarmSetting
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.tiny_model import TENSORS, TinyTrainer, first_params
from peer.lab.sim.trainer import VirtualTrainer
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.methods.method import Method
from peer.observe import events
from peer.protocol.model.fragments import cut
from peer.protocol.model.layout import Layout
from peer.protocol.schedule import RoundClock
from peer.run.resolve import method_findings, resolve
from peer.run.sections import SyncSection
from tests.support.invariants import Witness

SEED, EXCHANGES, SYNC_S, STEP_S = 7, 3, 8.0, 1.0
PEERS = {"pair": 4, "group": 4, "solo": 2}
AS = {"pair": "noloco", "group": "diloco", "solo": "snoo"}
"""The presets from which the other options of a method are taken."""
FIRST = {"full": 0, "streaming": 1}
"""First round of the peers that are present from the start."""


def values_of(choice: str) -> tuple[str, ...]:
    """Return all values that a manifest may have for this option."""
    literal = next(kind for kind in get_args(SyncSection.model_fields[choice].annotation) if kind is not type(None))
    return get_args(literal)


def sections() -> Iterator[tuple[str, SyncSection]]:
    names = ("topology", "rule", "schedule", "codec")
    for chosen in product(*(values_of(name) for name in names)):
        base: dict[str, Any] = {"preset": AS[chosen[0]], "sync_every": SYNC_S, **dict(zip(names, chosen, strict=True))}
        yield ", ".join(chosen), SyncSection(**base)
        if chosen[:2] == ("pair", "noloco"):
            yield ", ".join([*chosen, "consensus apart"]), SyncSection(**base, consensus=0.4)
        if chosen[0] == "group" and chosen[-1] in ("fp32", "topk"):
            yield ", ".join([*chosen, "equal weights"]), SyncSection(**base, weights="equal")
        if chosen[0] == "group" and chosen[-1] in ("fp32", "int4", "topk"):
            yield ", ".join([*chosen, "rda"]), SyncSection(**base, mean="rda")


CLEAN = {name: section for name, section in sections() if not method_findings(section)}


def daily() -> set[str]:
    """Return one combination for each topology, rule and schedule, and for each codec and further option of a
    topology."""
    of: dict[tuple[str, ...], str] = {}
    for name in CLEAN:
        topology, rule, schedule, *rest = name.split(", ")
        of.setdefault((topology, rule, schedule), name)
        of.setdefault((topology, *rest), name)
    return set(of.values())


PLAYED = [pytest.param(CLEAN[name], marks=[] if name in daily() else [pytest.mark.nightly], id=name) for name in CLEAN]


def test_the_combinations_are_those_of_the_manifest() -> None:
    assert {value for name in CLEAN for value in name.split(", ")} >= {
        *values_of("topology"),
        *values_of("rule"),
        *values_of("schedule"),
        *values_of("codec"),
    }
    assert len(CLEAN) > 100
    assert len(CLEAN) < len(list(sections()))


def played(method: Method) -> tuple[SimulatedSwarm, list[str]]:
    """Return the swarm, and the promises that it broke."""
    pattern = "whole" if method.schedule == "full" else method.fragment_layout
    layout = cut(TENSORS, fragments=method.fragments, pattern=pattern, apart=method.fragments_apart)

    def trainer(number: int, layout: Layout, clock: VirtualClock) -> VirtualTrainer:
        return TinyTrainer(layout, clock, step_seconds=STEP_S, seed=SEED, data=f"peer {number}")

    async def main() -> tuple[SimulatedSwarm, Witness]:
        swarm = SimulatedSwarm(
            PEERS[method.topology],
            SwarmSetting(
                method=method,
                rounds=RoundClock("seconds", method.sync_every, method.fragments, EPOCH),
                total_rounds=EXCHANGES * method.fragments + FIRST[method.schedule],
                seed=SEED,
                layout=layout,
                first=first_params(SEED, layout),
                min_peers=PEERS[method.topology],
            ),
            make_trainer=trainer,
        )
        witness = Witness(swarm)
        await swarm.run()
        return swarm, witness

    swarm, witness = run_virtual(main())
    return swarm, witness.broken()


@pytest.mark.parametrize("section", PLAYED)
def test_what_checks_clean_plays(section: SyncSection) -> None:
    method = resolve(section)
    swarm, broken = played(method)
    assert broken == []
    rounds = range(FIRST[method.schedule], EXCHANGES * method.fragments + FIRST[method.schedule])
    for peer in swarm.peers:
        ended = {event.round: event.outcome for event in peer.events if isinstance(event, events.RoundEnded)}
        assert ended == dict.fromkeys(rounds, "solo" if method.topology == "solo" else "exchanged")
        assert torch.isfinite(peer.outer.params).all()
        losses = [event.loss for event in peer.events if isinstance(event, events.Evaluated)]
        assert losses[-1] < losses[0]


def test_an_owner_that_makes_another_radial_mean_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    method = resolve(SyncSection(preset="streaming-diloco", sync_every=SYNC_S, mean="rda"))
    assert played(method)[1] == []
    monkeypatch.setattr(radial, "stretch", lambda weights, lengths, resultant: None)
    assert "not the mean of" in " ".join(played(method)[1])
