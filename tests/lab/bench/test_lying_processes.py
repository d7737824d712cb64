"""The benchmark of lies among real processes: which peers lie in which swarm, and what counts as a broken bound."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.lying_processes import ALONE, HONEST, Judgements, LyingSwarms, PlayedSwarm, figures_of, outcome
from peer.observe.event_codec import encode
from peer.observe.events import Evaluated, Event, PartnerFailed, PartnerJudged
from peer.run.home import Home
from peer.run.manifest import parse_manifest

SWARMS = LyingSwarms(8, 10, 50, seed=3)
PLAYED = PlayedSwarm(2.0, Judgements(), Judgements(taken=60), Counter(), 0, 0, 1.0)


@pytest.mark.parametrize(
    ("part", "peers", "attacks"), [(ALONE, 7, {}), (HONEST, 8, {}), ("negate", 8, {8: "negate"})], ids=str
)
def test_the_last_peer_has_its_part(part: str, peers: int, attacks: dict[int, str], tmp_path: Path) -> None:
    plan = SWARMS.plan(part, tmp_path)
    manifest = parse_manifest(plan.manifest.encode())
    assert (plan.peers, plan.setups.attacks) == (peers, attacks)
    assert (manifest.seed, manifest.train.total_rounds, manifest.sync.sync_every) == (3, 10, 50)
    assert (manifest.sync.preset, manifest.sync.clock) == ("gossip", "steps")


@pytest.mark.parametrize(
    ("liar", "broken"),
    [
        (PLAYED, set()),
        (replace(PLAYED, loss=2.05), {"negate"}),
        (replace(PLAYED, loss=float("nan")), {"negate"}),
        (replace(PLAYED, of_honest=Judgements(taken=50, refused=10)), {"exchanges of the honest refused"}),
        (replace(PLAYED, off=1), {"ledger, off by"}),
    ],
    ids=["well", "harm", "no loss", "refusals", "ledger"],
)
def test_harm_refusals_and_a_wrong_ledger_break_a_bound(liar: PlayedSwarm, broken: set[str]) -> None:
    played = {ALONE: PLAYED, HONEST: PLAYED, "negate": liar}
    figures = figures_of(replace(SWARMS, played=played))
    assert {figure.name for figure in figures if figure.holds is False} == broken
    few = figures_of(replace(SWARMS, peers=4, played=played))
    assert {figure.name for figure in few if figure.holds is False} == broken - {"negate"}


def test_a_swarm_is_read_from_the_journals_of_the_honest(tmp_path: Path) -> None:
    def judged(peer: str, verdict: str, unchecked: str = "") -> PartnerJudged:
        lengths = {"work": 1.0, "distance": 1.0, "radius": 1.0}
        return PartnerJudged(round=1, fragment=0, peer=peer, verdict=verdict, reason="", unchecked=unchecked, **lengths)

    refused = PartnerFailed(peer="c", round=2, code="norm", reason="")
    told: list[list[Event]] = [
        [judged("b", "clipped", "late"), judged("c", "refused"), Evaluated(round=2, loss=2.0, bits_per_byte=1.0)],
        [judged("a", "taken"), refused, Evaluated(round=2, loss=4.0, bits_per_byte=1.0)],
        [judged("a", "refused"), Evaluated(round=2, loss=99.0, bits_per_byte=1.0)],
    ]
    for number, events in enumerate(told, 1):
        folder = Home(tmp_path / f"peer-{number}").run(bytes(32))
        folder.journal.write_bytes(b"".join(encode(event, 1.0) for event in events))
    row = {"rounds": {"failed": 1}, "val_loss_last": 2.0}
    book = {"processed": 9, "applied": 6, "dropped": 1, "outstanding": 1}
    report = {"run_id": "00" * 32, "peers": [row | {"peer_id": peer} for peer in "abc"], "swarm": {"ledger": book}}
    found = outcome(report, LyingSwarms(3, 10, 50, seed=0).plan("flip", tmp_path), 60.0)
    assert found.loss == 3.0
    assert found.of_liar == Judgements(refused=2)
    assert found.of_honest == Judgements(taken=1, clipped=1)
    assert (found.unchecked, found.failed, found.off) == (Counter(late=1), 2, 1)
