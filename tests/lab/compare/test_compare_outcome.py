"""The outcome of a comparison: ranking and target, as JSON, table and plot."""

from __future__ import annotations

import json

import pytest

from peer.errors import SwarmFailed
from peer.lab.compare.curve import Mark, SwarmCourse
from peer.lab.compare.entries import Entry, entries_of
from peer.lab.compare.result import Comparison, amount, compare, table, time_scale

ENTRIES = entries_of(["noloco", "diloco", "none"], [], peers=4, steps=None, step_seconds=None)
FACTORS = {"noloco": 1.0, "diloco": 0.9, "none": 1.1}
BYTES = {"noloco": 1e3, "diloco": 4e3, "none": 0.0}


def played(entry: Entry, seed: int, longer: float = 1.0) -> SwarmCourse:
    losses = (5.0, 3.0, 2.5, 2.4 + seed / 10)
    return SwarmCourse(
        tuple(
            Mark(at, 1000.0 * at, BYTES[entry.name] * at, 10.0 * longer * at, loss * FACTORS[entry.name], 4 - (at == 2))
            for at, loss in enumerate(losses)
        )
    )


def outcome(target: float | None = None, seeds: tuple[int, ...] = (0, 1)) -> Comparison:
    return compare(ENTRIES, 4, seeds, "a test", played, target)


def test_the_target_is_the_least_loss_that_all_reach() -> None:
    found = outcome()
    assert found.target == pytest.approx(2.45 * 1.1)
    assert "none" in found.why
    reached = {standing.entry.name: standing.at_target for standing in found.standings}
    assert {name: mark and mark.round for name, mark in reached.items()} == {"noloco": 2, "diloco": 2, "none": 3}


def test_a_target_of_ones_own_may_be_missed() -> None:
    found = outcome(2.3)
    assert [standing.at_target and standing.at_target.round for standing in found.standings] == [None, 2, None]
    assert table(found).count("not reached") == 2


def test_the_losses_are_those_at_equal_tokens() -> None:
    def shorter(entry: Entry, seed: int) -> SwarmCourse:
        return SwarmCourse(played(entry, seed).curve[: 3 if entry.name == "none" else 4])

    found = compare(ENTRIES, 4, [0], "a test", shorter)
    assert found.tokens == 2000
    assert [standing.loss for standing in found.standings] == pytest.approx([2.5, 2.25, 2.75])


def test_as_json() -> None:
    body = json.loads(json.dumps(outcome().to_json()))
    assert [method["name"] for method in body["methods"]] == ["noloco", "diloco", "none"]
    first = body["methods"][0]
    assert first["losses"] == [2.4, 2.5]
    assert first["loss"] == pytest.approx(2.45)
    at_target = {"round": 2, "tokens": 2000, "bytes": 2000, "seconds": 20.0, "loss": 2.5, "evaluated": 3}
    assert first["to_target"] == at_target
    assert len(first["curve"]) == 4
    assert (body["tokens"], body["seeds"], body["peers"]) == (3000, [0, 1], 4)


def test_as_a_table() -> None:
    lines = table(outcome()).splitlines()
    assert lines[0] == "4 peers, seeds 0, 1, a test"
    assert lines[2].endswith("evaluated in that round: 3 to 4 of 4")
    assert lines[-3].split() == [
        *("noloco", "modulo7", "20", "2.4500", "11.11", "0.1000", "3", "kB", "30", "s", "2", "k", "2", "kB", "20", "s")
    ]
    assert len({len(line) for line in lines[-4:]}) == 1


def test_nobody_evaluated_is_a_failure() -> None:
    with pytest.raises(SwarmFailed, match="noloco with seed 0"):
        compare(ENTRIES, 4, [0], "a test", lambda entry, seed: SwarmCourse(()))


@pytest.mark.parametrize(("longer", "times"), [(1, "30 s 20 s"), (12, "6 min 4 min"), (700, "5.83 h 3.89 h")])
def test_times_are_in_one_unit_that_fits_the_longest(longer: int, times: str) -> None:
    found = compare(ENTRIES, 4, (0,), "a test", lambda entry, seed: played(entry, seed, longer))
    cells = table(found).splitlines()[-3].split()
    assert " ".join([*cells[-8:-6], *cells[-2:]]) == times
    assert found.to_json()["methods"][0]["curve"][-1]["seconds"] == 30 * longer


def test_round_numbers() -> None:
    assert [amount(value) for value in (0, 12.5, 1234, 3.5e6, 2e9)] == ["0 ", "12.5 ", "1.23 k", "3.5 M", "2 G"]
    assert [time_scale(most).written(most) for most in (0.5, 119, 120, 7199, 7200, 1e6)] == [
        *("0.5 s", "119 s", "2 min", "120 min", "2 h", "278 h")
    ]
