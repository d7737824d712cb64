"""Failed swaps that a relay caused are excused, but only a few times for each partner."""

from __future__ import annotations

from peer.protocol.messages import PeerId
from peer.protocol.pair.broken_paths import EXCUSED, MAX_PARTNERS, WINDOW_S, BrokenPaths

ONE, OTHER, NOW = PeerId("one"), PeerId("other"), 1000.0


def test_a_partner_is_excused_a_few_times_and_again_when_those_are_long_ago() -> None:
    paths = BrokenPaths()
    assert [paths.excuses(ONE, NOW + at) for at in range(EXCUSED + 3)] == [True] * EXCUSED + [False] * 3
    assert paths.excuses(OTHER, NOW + 9), "another one pays for nothing"
    assert not paths.excuses(ONE, NOW + WINDOW_S - 1)
    assert paths.excuses(ONE, NOW + WINDOW_S)
    assert not paths.excuses(ONE, NOW + WINDOW_S)


def test_one_partner_of_many_is_still_remembered() -> None:
    paths = BrokenPaths()
    for number in range(3 * MAX_PARTNERS):
        paths.excuses(PeerId(f"partner {number}"), NOW)
        said = paths.excuses(ONE, NOW)
    assert not said
    assert len(paths._excused) <= MAX_PARTNERS
