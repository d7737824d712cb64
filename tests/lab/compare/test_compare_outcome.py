"""The outcome of a comparison: who wins, at which target, as JSON, as a table and as a picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from peer.errors import SwarmFailed
from peer.lab.compare.curve import Curve, Mark
from peer.lab.compare.entries import Entry, entries_of
from peer.lab.compare.plot import nice_step, picture
from peer.lab.compare.result import Comparison, amount, compare, table

ENTRIES = entries_of(["noloco", "diloco", "none"], [], peers=4, steps=None, step_seconds=None)
FACTORS = {"noloco": 1.0, "diloco": 0.9, "none": 1.1}
BYTES = {"noloco": 1e3, "diloco": 4e3, "none": 0.0}


def played(entry: Entry, seed: int) -> Curve:
    losses = (5.0, 3.0, 2.5, 2.4 + seed / 10)
    return tuple(
        Mark(at, 1000.0 * at, BYTES[entry.name] * at, 10.0 * at, loss * FACTORS[entry.name], 4 - (at == 2))
        for at, loss in enumerate(losses)
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
    def shorter(entry: Entry, seed: int) -> Curve:
        return played(entry, seed)[: 3 if entry.name == "none" else 4]

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
        *("noloco", "modulo7", "20", "2.4500", "11.11", "0.1000", "3", "kB", "30.0", "2", "k", "2", "kB", "20.0")
    ]
    assert len({len(line) for line in lines[-4:]}) == 1


def test_the_picture_has_each_curve_three_times_and_nothing_foreign() -> None:
    text = picture(outcome())
    root = ElementTree.fromstring(text)
    lines = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(lines) == 9
    assert all(len(line.attrib["points"].split()) == 4 for line in lines)
    dots = list(root.iter("{http://www.w3.org/2000/svg}circle"))
    assert len(dots) == 9
    words = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"tokens of all peers", "bytes sent by a peer", "seconds", "none  2.6950"} <= set(words)
    assert text.count("http") == 1, "no other host is asked for anything"


def test_a_better_loss_is_drawn_lower() -> None:
    root = ElementTree.fromstring(picture(outcome()))
    lines = [node.attrib["points"] for node in root.iter("{http://www.w3.org/2000/svg}polyline")]
    heights = [float(points.split()[-1].split(",")[1]) for points in lines[:3]]
    assert heights[1] > heights[0] > heights[2], "pixels count downwards: diloco, noloco, none"


def test_a_name_cannot_break_the_picture() -> None:
    entries = [replace(ENTRIES[2], name="<a&b>")]
    found = compare(entries, 4, [0], "a <test>", lambda entry, seed: played(ENTRIES[2], seed))
    assert ElementTree.fromstring(picture(found)) is not None


def test_nobody_evaluated_is_a_failure() -> None:
    with pytest.raises(SwarmFailed, match="noloco with seed 0"):
        compare(ENTRIES, 4, [0], "a test", lambda entry, seed: ())


def test_round_numbers() -> None:
    assert [nice_step(least) for least in (0.011, 0.2, 0.21, 3, 60)] == pytest.approx([0.02, 0.2, 0.5, 5, 100])
    assert [amount(value) for value in (0, 12.5, 1234, 3.5e6, 2e9)] == ["0 ", "12.5 ", "1.23 k", "3.5 M", "2 G"]
