from __future__ import annotations

import pytest

from peer.errors import ClockWrong
from peer.joining.messages import check_clock, unreachable, waiting_reason
from peer.ports.directory import DialReport
from peer.protocol.messages import RunId

RUN = RunId(b"\xab" * 32)
A, B = "/ip4/192.0.2.1/tcp/4810/p2p/12D3KooA", "/dns4/host.example/tcp/4810/p2p/12D3KooB"


@pytest.mark.parametrize(("offset", "words"), [(-600.0, "600 s ahead of"), (600.4, "600 s behind")])
def test_a_wrong_clock_is_told_with_offset_and_direction(offset: float, words: str) -> None:
    with pytest.raises(ClockWrong, match=words):
        check_clock(DialReport({}, offset))


def test_a_clock_within_bounds_or_unknown_is_fine() -> None:
    for offset in (None, 0.0, 59.0, -60.0):
        check_clock(DialReport({}, offset))
    with pytest.raises(ClockWrong, match="at most 2 s"):
        check_clock(DialReport({}, 3.0), 2.0)


def test_who_does_not_answer_is_named_only_when_nobody_does() -> None:
    assert waiting_reason(DialReport({A: "refused", B: "silent"}), "x") == (
        "nobody answers: /ip4/192.0.2.1/tcp/4810: refused; /dns4/host.example/tcp/4810: silent"
    )
    assert waiting_reason(DialReport({A: "refused", B: ""}), "no peer yet") == "no peer yet"
    assert waiting_reason(DialReport(), "no peer yet") == "no peer yet"


def test_giving_up_says_what_follows() -> None:
    error = unreachable(DialReport({A: "refused", B: ""}), RUN, "nobody is announced", 120.0)
    assert "nobody is announced" in error.found
    assert f"{B}\n    answers" in error.found
    assert "ask the operator whether this run is over" in error.fix
    assert "--initial-peers" in unreachable(DialReport(), RUN, "", 120.0).fix
    assert error.found.startswith(f"no peer of run {'ab' * 8} gave its manifest within 120 s")
