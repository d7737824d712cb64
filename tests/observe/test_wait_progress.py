"""The progress of a wait, and how its numbers are formatted."""

from __future__ import annotations

import pytest

from peer.observe.formatting import amount, duration, harmless
from peer.observe.progress import RATE_S, Waits, wait_line, wait_numbers, worth_showing
from peer.observe.status.value import WaitStatus


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def reported(waits: Waits) -> WaitStatus:
    report = waits.report()
    assert report is not None
    return report


def test_a_transfer_tells_bytes_rate_and_time_left() -> None:
    clock = Clock()
    waits = Waits(clock)
    waits.update("fetching", 0, 4e6, "bytes")
    clock.now += 2
    waits.update("fetching", 1e6, 4e6, "bytes")
    report = reported(waits)
    assert report == WaitStatus(name="fetching", done=1e6, total=4e6, unit="bytes", seconds=2.0, rate=5e5)
    assert wait_line(report) == "fetching: 1.00 MB of 4.00 MB (25 %), 500.0 kB/s, ~6 s left"


def test_what_was_here_before_is_no_speed() -> None:
    clock = Clock()
    waits = Waits(clock)
    waits.update("fetching (1 donor)", 300e6, 400e6, "bytes")
    clock.now += 2
    waits.update("fetching (2 donors)", 301e6, 400e6, "bytes")
    assert wait_numbers(reported(waits)) == "301.0 MB of 400.0 MB (75 %), 500.0 kB/s, ~3 min left"


def test_the_rate_is_that_of_the_last_seconds() -> None:
    """A fast donor that left a minute ago does not shorten the estimated time."""
    clock = Clock()
    waits = Waits(clock)
    for second in range(2 + int(RATE_S)):
        waits.update("fetching", 100e6 * min(second, 1) + 1e5 * second, 200e6, "bytes")
        clock.now += 1
    report = reported(waits)
    assert report.rate == pytest.approx(1e5, rel=0.1)
    clock.now += 10 * RATE_S
    assert reported(waits).rate < 1e4, "nothing comes"


def test_a_lost_part_of_a_piece_takes_nothing_of_the_time_away() -> None:
    clock = Clock()
    waits = Waits(clock)
    for done in (0.0, 2e6, 1e6):
        waits.update("fetching", done, 4e6, "bytes")
        clock.now += 2
    report = reported(waits)
    assert (report.seconds, report.rate) == (6.0, 0.0)


def test_a_transfer_that_begins_anew_counts_anew() -> None:
    clock = Clock()
    waits = Waits(clock)
    waits.update("fetching", 3e6, 4e6, "bytes")
    clock.now += 50
    waits.update("fetching", 0, 4e6, "bytes")
    clock.now += 1
    report = reported(waits)
    assert report.seconds == 1.0
    assert wait_numbers(report) == "0 B of 4.00 MB (0 %)", "no rate is made up"


def test_a_wait_for_a_moment_goes_on_over_interruptions() -> None:
    clock = Clock()
    waits = Waits(clock)
    waits.update("waiting for a donor", 0, 600, "s")
    waits.update("fetching", 0, None, "bytes")
    clock.now += 30
    waits.update("waiting for a donor", 30, 600, "s")
    clock.now += 5
    report = reported(waits)
    assert report.done == report.seconds == 35.0
    assert wait_numbers(report) == "35 s of at most 10 min"


def test_without_a_total_only_what_is_known_is_told() -> None:
    clock = Clock()
    waits = Waits(clock)
    waits.update("reading", 0, None, "s")
    clock.now += 3
    assert wait_numbers(reported(waits)) == "3 s"
    waits.update("packing", 5, None, "files")
    assert wait_numbers(reported(waits)) == "5 files"


def test_nothing_is_shown_before_two_seconds_or_after_the_end() -> None:
    clock = Clock()
    waits = Waits(clock)
    assert not worth_showing(waits.report())
    waits.update("reading", 0, None, "s")
    assert not worth_showing(waits.report())
    clock.now += 2
    assert worth_showing(waits.report())
    waits.end()
    assert waits.report() is None


def test_numbers_are_written_for_people() -> None:
    assert [amount(n, "bytes") for n in (0, 999, 1000, 12_345_678, 5e9)] == [
        "0 B",
        "999 B",
        "1.00 kB",
        "12.3 MB",
        "5.00 GB",
    ]
    assert [duration(s) for s in (-1, 0.4, 119, 120, 7199, 12_000)] == [
        "0 s",
        "0 s",
        "119 s",
        "2 min",
        "119 min",
        "3 h 20 min",
    ]
    assert amount(3, "pieces") == "3 pieces"


def test_what_a_terminal_would_obey_is_shown_instead() -> None:
    assert harmless("a\x1b[2Jb\nc\x9bd\u202ee") == "a\\x1b[2Jb\nc\\x9bd\\u202ee"
    assert harmless("grün · 日本") == "grün · 日本"
