from __future__ import annotations

import pytest

from peer.clock.quiet_hours import QuietHours
from peer.errors import UsageError


@pytest.mark.parametrize(
    ("text", "quiet", "loud"),
    [
        ("22:00-07:00", [(22, 0), (23, 59), (0, 0), (6, 59)], [(7, 0), (12, 0), (21, 59)]),
        ("09:30-17:00", [(9, 30), (16, 59)], [(9, 29), (17, 0), (0, 0), (23, 59)]),
        ("0:00-6:00", [(0, 0), (5, 59)], [(6, 0), (23, 59)]),
    ],
)
def test_they_hold_from_begin_until_before_the_end(
    text: str, quiet: list[tuple[int, int]], loud: list[tuple[int, int]]
) -> None:
    hours = QuietHours.parse(text)
    assert [hours.hold(hour * 60 + minute) for hour, minute in quiet] == [True] * len(quiet)
    assert [hours.hold(hour * 60 + minute) for hour, minute in loud] == [False] * len(loud)
    assert QuietHours.parse(str(hours)) == hours


@pytest.mark.parametrize("text", ["", "22:00", "24:00-07:00", "22:60-07:00", "22-7", "22:00-22:00", "22:00-07:00x"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        QuietHours.parse(text)


@pytest.mark.parametrize(
    ("text", "now", "minutes"),
    [
        ("22:00-07:00", (21, 59), 1),
        ("22:00-07:00", (22, 0), 24 * 60),
        ("22:00-07:00", (7, 0), 15 * 60),
        ("0:00-6:00", (23, 30), 30),
    ],
)
def test_it_is_known_when_they_begin_next(text: str, now: tuple[int, int], minutes: int) -> None:
    assert QuietHours.parse(text).begin_in(now[0] * 60 + now[1]) == minutes
