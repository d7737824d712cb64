"""The text tables of benchmarks, and their shared arithmetic."""

from __future__ import annotations

import math

import pytest

from peer.lab.bench.tables import percentile, slope, table


def test_columns_line_up_and_what_is_not_known_is_empty() -> None:
    lines = table(["", "seconds", "note"], [["a", 0.12345, "x"], ["longer", math.nan, None], ["b", 1234.5, ""]])

    assert lines.splitlines() == [
        "        seconds  note",
        "a         0.123     x",
        "longer",
        "b          1234",
    ]


def test_the_slope_of_a_line_is_its_own_and_noise_around_it_adds_nothing() -> None:
    assert slope([1.0, 3.0, 5.0, 7.0]) == pytest.approx(2.0)
    assert slope([5.0, 5.0, 5.0]) == 0.0
    assert slope([1.0, -1.0, -1.0, 1.0]) == pytest.approx(0.0)


def test_percentiles_are_values_that_were_there() -> None:
    values = [float(value) for value in range(100, 0, -1)]

    assert percentile(values, 0.5) == 50.0
    assert percentile(values, 0.99) == 99.0
    assert percentile(values, 1.0) == 100.0
    assert percentile([7.0], 0.5) == 7.0
