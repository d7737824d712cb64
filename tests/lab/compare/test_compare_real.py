"""A method run as processes: its journals are read, and its homes are removed on success."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from peer.errors import OrdersNotCarriedOut, SwarmFailed
from peer.lab.compare import play
from peer.lab.compare.entries import entries_of
from peer.lab.compare.play import play_real
from peer.lab.localswarm.plan import SwarmPlan
from peer.lab.localswarm.run import Say
from peer.observe.event_codec import encode
from peer.observe.events import Evaluated, TrainingBegan
from peer.observe.totals import rotated_path
from peer.run.home import Home
from peer.run.manifest import parse_manifest

RUN = bytes(range(32))
ENTRY = entries_of(["diloco"], [], peers=4, steps=80, step_seconds=None)[0]


class StandIn:
    """Stands in for `Swarm` without processes: each peer leaves a journal of two files."""

    plans: ClassVar[list[SwarmPlan]]
    stopped = False
    exit_code = 0
    why_not = ""

    def __init__(self, plan: SwarmPlan, say: Say) -> None:
        self._plan = plan
        self.plans.append(plan)

    async def run(self) -> dict[str, Any]:
        for number in range(1, self._plan.peers + 1):
            journal = Home(self._plan.home / f"peer-{number}").run(RUN).journal
            journal.parent.mkdir(parents=True, exist_ok=True)
            began = encode(TrainingBegan(round=0), 10.0)
            rotated_path(journal).write_bytes(began + encode(Evaluated(round=0, loss=5.0, bits_per_byte=1.0), 10.0))
            journal.write_bytes(encode(Evaluated(round=4, loss=float(number), bits_per_byte=1.0), 20.0 + number))
        rows = [{"exit_code": self.exit_code, "killed": False}] * self._plan.peers
        length = {"order": "the run's 4 rounds", "carried_out_at_s": None, "why_not": self.why_not}
        return {"run_id": RUN.hex(), "peers": rows, "orders": [length]}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> type[StandIn]:
    class Fresh(StandIn):
        plans: ClassVar[list[SwarmPlan]] = []

    monkeypatch.setattr(play, "Swarm", Fresh)
    return Fresh


def test_the_curve_is_that_of_the_journals_and_the_homes_go(tmp_path: Path, stand_in: type[StandIn]) -> None:
    course = play_real(replace(ENTRY, peers=3), 7, tmp_path / "homes", print)
    start, end = course.curve
    assert [(row.round, row.peer, row.loss) for row in course.rows][3:] == [(4, 1, 1.0), (4, 2, 2.0), (4, 3, 3.0)]
    assert (start.loss, end.loss, end.seconds) == (5.0, 2.0, 12.0)
    assert list(tmp_path.iterdir()) == []
    manifest = parse_manifest(stand_in.plans[0].manifest.encode())
    assert (manifest.seed, manifest.sync.founders, manifest.train.total_rounds) == (7, 3, 4)


def test_a_failed_swarm_leaves_its_homes(
    tmp_path: Path, stand_in: type[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in, "exit_code", 40)
    with pytest.raises(SwarmFailed, match="peer 1"):
        play_real(replace(ENTRY, peers=2), 0, tmp_path / "homes", print)
    assert (tmp_path / "homes").is_dir()


def test_a_swarm_that_was_ended_before_its_last_round_is_no_curve(
    tmp_path: Path, stand_in: type[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in, "why_not", "nothing moved any more")
    said: list[str] = []
    with pytest.raises(OrdersNotCarriedOut, match="the run's 4 rounds"):
        play_real(replace(ENTRY, peers=2), 0, tmp_path / "homes", said.append)
    assert "  the run's 4 rounds: nothing moved any more" in said


def test_a_person_who_stops_a_swarm_stops_the_comparison(
    tmp_path: Path, stand_in: type[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in, "stopped", True)
    with pytest.raises(KeyboardInterrupt):
        play_real(replace(ENTRY, peers=2), 0, tmp_path / "homes", print)
