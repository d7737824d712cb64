"""The round that the operator's node derives from records, which anyone can forge."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.node.operator.run_progress import REMEMBERED, RunEnd, RunProgress
from peer.protocol.messages import MAX_RECORD_TTL_S, PeerId, PeerRecord, RunId, Status
from peer.protocol.policy.donors import ALONE_S, FIRST_ROUNDS, first_state_refusal
from peer.protocol.schedule import RoundClock

ROUND_S, LOOK_S, TOTAL = 10.0, 3.0, 10**6
RUN = RunId(b"r" * 32)


def trains(name: str, round_: int) -> PeerRecord:
    return PeerRecord(PeerId(name), RUN, (), True, 1, 1, round_, 1.0, Status.TRAINING, 0.0, 1e12)


class Node:
    """The operator's node of a run that began `age_s` seconds ago."""

    def __init__(self, folder: Path, age_s: float, kind: str = "seconds") -> None:
        self.rounds = RoundClock("seconds" if kind == "seconds" else "steps", ROUND_S, start=1000.0)
        self.now = 1000.0 + age_s
        self._file = folder / "run_round"
        self.start()

    def start(self) -> None:
        self.progress = RunProgress(self._file, lambda: self.rounds, lambda: self.now)

    def sees(self, *records: PeerRecord, for_s: float) -> None:
        until = self.now + for_s
        while self.now < until:
            self.progress.learn(records)
            self.now += LOOK_S


def test_one_record_for_eight_seconds_costs_a_young_run_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, age_s=0.0)
    node.sees(trains("liar", 10**6), for_s=8.0)
    assert node.progress.value <= FIRST_ROUNDS
    assert first_state_refusal(node.progress.value) == ""


@pytest.mark.parametrize("kind", ["seconds", "steps"])
@pytest.mark.parametrize("shown_s", [8.0, MAX_RECORD_TTL_S])
def test_one_record_is_forgotten_in_an_old_run_too(tmp_path: Path, kind: str, shown_s: float) -> None:
    node = Node(tmp_path, age_s=1e5, kind=kind)
    node.sees(trains("liar", 10**6), for_s=shown_s)
    assert node.progress.value <= (node.now - node.rounds.start) / ROUND_S / (1e-3 if kind == "steps" else 1.0) + 1
    assert first_state_refusal(node.progress.value) != "", "nobody can tell yet that it is a liar"
    node.now += REMEMBERED * MAX_RECORD_TTL_S
    assert first_state_refusal(node.progress.value) == ""
    node.start()
    assert node.progress.value == 0


def test_one_record_does_not_end_a_run_in_steps_for_good(tmp_path: Path) -> None:
    node = Node(tmp_path, age_s=1e5, kind="steps")
    node.sees(trains("a", 500), for_s=3600.0)
    node.now += 2 * ALONE_S
    end = RunEnd(lambda: node.rounds, TOTAL, node.progress)
    node.sees(trains("liar", TOTAL), for_s=8.0)
    assert end.over(node.now), "the node sees nobody else"
    node.now += ALONE_S + 1
    assert not end.over(node.now)
    assert node.progress.value == 500, "what was seen for an hour is remembered"


def test_a_run_that_was_seen_for_long_is_remembered_over_restarts(tmp_path: Path) -> None:
    node = Node(tmp_path, age_s=600.0)
    node.sees(trains("a", 57), for_s=3600.0)
    node.start()
    assert node.progress.value == 57
    node.now += 0.9 * REMEMBERED * 3600.0
    assert "round 57" in first_state_refusal(node.progress.value)
    node.now += 0.2 * REMEMBERED * 3600.0
    assert first_state_refusal(node.progress.value) == ""


def test_one_peer_alone_does_not_move_it(tmp_path: Path) -> None:
    node = Node(tmp_path, age_s=600.0)
    assert first_state_refusal(node.progress.value) == ""
    node.sees(trains("a", 5), trains("liar", 2**50), for_s=60.0)
    assert node.progress.value == 5


def test_before_the_run_began_no_round_counts(tmp_path: Path) -> None:
    node = Node(tmp_path, age_s=600.0)
    node.rounds = RoundClock("seconds", ROUND_S)
    node.sees(trains("liar", 10**6), for_s=60.0)
    assert node.progress.value == 0


@pytest.mark.parametrize("torn", [b"torn", b"57", b"[{}]", b'[{"round": "x", "seen_s": 1, "last": 1}]', b"{}", b"[1]"])
def test_a_file_that_cannot_be_read_counts_as_none(tmp_path: Path, torn: bytes) -> None:
    (tmp_path / "run_round").write_bytes(torn)
    assert Node(tmp_path, age_s=600.0).progress.value == 0


def test_a_run_in_steps_begins_for_the_node_when_it_first_sees_peers_train(tmp_path: Path) -> None:
    node = Node(tmp_path, age_s=1e4, kind="steps")
    node.rounds = RoundClock("steps", ROUND_S)
    node.sees(trains("a", 7), trains("b", 7), trains("c", 7), for_s=8.0)
    assert node.progress.value == 7
    node.start()
    assert node.progress.furthest() > 7
    node.sees(trains("liar", 10**6), for_s=8.0)
    assert node.progress.value < 2000
