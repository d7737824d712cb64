"""The live view rendered without a terminal, at several widths."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from peer.node.page import PageSource
from peer.observe.formatting import amount, round_outcomes
from peer.observe.status.notices import read_status
from peer.observe.status.text import status_line, status_text
from peer.observe.terminal_frame import BAR_WIDTH, MAX_LOSSES, History, render_frame, sparkline
from peer.web.volunteer import VolunteerAccount

ME, PARTNER = f"12D3KooW{'x' * 38}ABCDEF", f"12D3KooW{'x' * 38}UVWXYZ"

JOINING: dict[str, Any] = {
    "role": "peer",
    "peer_id": ME,
    "run_id": "ab" * 32,
    "run": "",
    "status": "joining",
    "phase": "getting the state",
    "uptime_s": 7.0,
    "bytes_sent": 0,
    "bytes_received": 12_300_000,
    "caps": {"sent": 125_000.0, "received": None},
    "reachable": {"value": None, "why": ""},
    "directory": {"state": "joined", "why": ""},
    "refusals": [],
    "wait": {"name": "fetching the state", "done": 12.3e6, "total": 40.0e6, "unit": "bytes", "seconds": 10.0},
}
TRAINING = JOINING | {
    "run": "stdlib",
    "status": "training",
    "phase": f"exchanging with {PARTNER}",
    "uptime_s": 754.0,
    "bytes_sent": 2_000_000,
    "round": 12,
    "total_rounds": 40,
    "next_due_in_s": 23.4,
    "last_partner": PARTNER,
    "last_outcome": "exchanged",
    "last_seconds": 1.26,
    "rounds": {"due": 11, "exchanged": 9, "solo": 2},
    "steps": 1234,
    "tokens_per_s": 5321.0,
    "loss": 1.871,
    "val_loss": [10, 1.9, 2.741],
    "peers": [{"status": "training", "reachable": True}, {"status": "joining", "reachable": False}],
    "refusals": [{"seconds_ago": 12.0, "caller": "203.0.113.9", "code": "clock", "reason": "your clock is 90 s ahead"}],
    "wait": None,
}


def drawn(report: dict[str, Any], width: int, history: History | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(render_frame(read_status(report), history or History()))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def row(report: dict[str, Any], name: str, width: int = 100, history: History | None = None) -> str:
    """Return the value beside a label."""
    (line,) = [line for line in drawn(report, width, history) if line.startswith(f"{name} ")]
    return line.removeprefix(name).strip()


def test_a_peer_that_trains_shows_what_matters() -> None:
    title = drawn(TRAINING, 100)[1]
    for words in ("stdlib", "training", "exchanging with …UVWXYZ", "up 12 min", "…ABCDEF"):
        assert words in title
    assert PARTNER not in title
    assert row(TRAINING, "round") == "12 of 40, due in 23 s"
    assert row(TRAINING, "rounds") == "9 exchanged, 2 solo of 11 due (82% exchanged)"
    assert row(TRAINING, "partner") == "…UVWXYZ, 1.3 s"
    assert row(TRAINING, "step") == "1,234 · 5,321 tokens/s"
    assert row(TRAINING, "loss") == "1.871 nats a token"
    assert row(TRAINING, "hold-out") == "1.900 nats a token, 2.741 bits a byte, at round 10"
    assert row(TRAINING, "peers") == "2 others known, 1 training, 1 can be dialled"
    assert row(TRAINING, "declined") == "12 s ago, 203.0.113.9: your clock is 90 s ahead (clock)"
    assert row(TRAINING, "down") == "12.3 MB · 0 B/s · no cap"


def test_bytes_are_shown_against_the_cap_at_the_rate_of_the_last_seconds() -> None:
    history = History()
    for second in range(20):
        history.add(read_status(TRAINING | {"bytes_sent": 50_000 * second if second > 10 else 0}), float(second))
    assert history.rates() == (50_000.0, 0.0)
    assert row(TRAINING, "up", 100, history).startswith("2.00 MB · 50.0 kB/s of 125.0 kB/s ━")
    full, half = (row(TRAINING, "up", 100, rate_of(rate)).count("━") for rate in (125_000, 62_500))
    assert full == 12
    assert half in (5, 6)


def rate_of(rate: int) -> History:
    history = History()
    history.add(read_status(TRAINING | {"bytes_sent": 0}), 0.0)
    history.add(read_status(TRAINING | {"bytes_sent": rate}), 1.0)
    return history


def test_a_joiner_shows_its_phase_and_how_far_the_wait_is() -> None:
    text = "\n".join(drawn(JOINING, 100))
    for words in ("abababababababab", "joining", "getting the state", "fetching the state", "━"):
        assert words in text
    assert "12.3 MB of 40.0 MB (30 %), 1.23 MB/s, ~23 s left" in text
    assert "round" not in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_many_donors_leave_the_bar_its_room(width: int) -> None:
    donors = "4 donors: zgNqQD6X 1.90 MB/s, YCF2DdZK 1.80 MB/s, F2DdZKab 100.0 kB/s"
    wait = JOINING["wait"] | {"name": f"fetching the state ({donors})", "done": 40.0e6}
    lines = drawn(JOINING | {"wait": wait}, width)
    assert lines[-3].count("━") == BAR_WIDTH
    assert lines[-1].strip()[:40] == donors[:40]


def test_a_short_wait_is_not_shown() -> None:
    assert "fetching" not in "\n".join(drawn(JOINING | {"wait": JOINING["wait"] | {"seconds": 1.9}}, 100))


def test_a_wait_without_a_known_end_has_a_moving_bar() -> None:
    wait = {"name": "the trainer is reading the data", "done": 5.0, "total": None, "unit": "s", "seconds": 5.0}
    lines = drawn(JOINING | {"wait": wait}, 100)
    assert lines[-2].startswith("waiting")
    assert "the trainer is reading the data ━" in lines[-2]
    assert lines[-1].strip() == "5 s"


def test_a_solo_round_and_an_unreachable_peer_say_so() -> None:
    report = TRAINING | {"last_partner": "", "last_outcome": "solo", "reachable": {"value": False, "why": "no answer"}}
    assert row(report, "partner") == "none in the last round: solo"
    assert row(report, "reachable") == "no: no answer"
    trouble = TRAINING | {"directory": {"why": "rebuilding, 2nd time"}}
    assert row(trouble, "directory") == "rebuilding, 2nd time"


@pytest.mark.parametrize("width", [40, 60, 80, 140])
@pytest.mark.parametrize("report", [JOINING, TRAINING, TRAINING | {"wait": JOINING["wait"]}])
def test_no_line_is_wider_than_the_terminal_nor_wrapped(width: int, report: dict[str, Any]) -> None:
    history = History()
    for step in range(500):
        history.add(read_status(TRAINING | {"steps": step, "loss": 5.0 - step / 100}), step / 2)
    lines = drawn(report, width, history)
    assert max(cell_len(line) for line in lines) <= width
    assert len(lines) == len(drawn(report, 200, history))


def test_at_60_columns_nothing_that_matters_is_cut() -> None:
    report = TRAINING | {"wait": JOINING["wait"]}
    text = "\n".join(drawn(report, 60, rate_of(50_000)))
    for words in (
        "12 of 40, due in 23 s",
        "9 exchanged, 2 solo of 11 due (82% exchanged)",
        "1.871 nats a token",
        "2.00 MB · 50.0 kB/s of 125.0 kB/s",
        "12.3 MB of 40.0 MB (30 %), 1.23 MB/s, ~23 s left",
        "203.0.113.9: your clock is",
    ):
        assert words in text


def test_strangers_cannot_send_commands_to_the_terminal() -> None:
    evil = "\x1b[2J\x07\x9b31m[red]not markup[/red]"
    refusal = {"seconds_ago": 1.0, "caller": evil, "code": evil, "reason": evil}
    report = TRAINING | {"run": evil, "phase": evil, "refusals": [refusal], "directory": {"why": evil}}
    report |= {"reachable": {"value": False, "why": evil}, "wait": JOINING["wait"] | {"name": evil}}
    text = "".join(drawn(report, 300))
    assert all(c.isprintable() for c in text)
    assert "[red]not markup[/red]" in text


def test_missing_parts_are_left_out() -> None:
    least = {key: JOINING[key] for key in ("peer_id", "run_id", "status", "phase", "uptime_s")}
    assert "joining" in "".join(drawn(least | {"bytes_sent": 0, "bytes_received": 0}, 80))
    early = TRAINING | {"loss": None, "val_loss": None, "rounds": {}, "last_outcome": "", "next_due_in_s": None}
    assert row(early, "loss") == row(early, "partner") == "none yet"
    assert row(early, "rounds") == "none was due yet"
    assert row(early, "round") == "12 of 40"
    assert row(TRAINING | {"val_loss": [3, None, None]}, "hold-out") == "no finite number, at round 3"


# -- the sparkline


def test_a_sparkline_falls_as_the_loss_does_and_fills_the_width() -> None:
    assert sparkline([8.0, 7, 6, 5, 4, 3, 2, 1], 8) == "█▇▆▅▄▃▂▁"
    assert sparkline([8.0, 8, 6, 6, 1, 1], 3) == "█▆▁"
    assert sparkline([2.0, 2.0], 10) == "▁▁"
    assert sparkline([], 10) == sparkline([1.0], 0) == ""
    assert len(sparkline([float(n) for n in range(1000)], 50)) == 50


def test_a_loss_that_is_not_finite_leaves_no_mark() -> None:
    history = History()
    for step, loss in enumerate([2.0, float("nan"), float("inf"), 1.0]):
        history.add(read_status(TRAINING | {"steps": step, "loss": loss}), float(step))
    assert "█▁" in "\n".join(drawn(TRAINING, 60, history))


def test_history_takes_each_step_once_and_is_bounded() -> None:
    history = History()
    for _ in range(3):
        history.add(read_status(TRAINING), 0.0)
    assert list(history.losses) == [1.871]
    for step in range(MAX_LOSSES + 100):
        history.add(read_status(TRAINING | {"steps": step}), float(step))
    assert len(history.losses) == MAX_LOSSES


def test_who_is_slow_is_shown_with_the_number() -> None:
    why = "your uplink: 0.8 Mbit/s, the same partners get 5.2 in the median"
    finding = {"what": "slow_uplink", "who": "you", "number": 0.8, "unit": "Mbit/s", "why": why}
    assert any(why in line for line in drawn(TRAINING | {"diagnosis": [finding]}, 100))


def test_the_upload_budget_is_shown_where_there_is_one() -> None:
    used = {"day": 1_200_000_000, "month": 40_000_000_000}
    without = {"used": used, "limit": {"day": None, "month": None}, "why": ""}
    assert not [line for line in drawn(TRAINING | {"budget": without}, 100) if "budget" in line]
    daily = {"used": used, "limit": {"day": 5 * 10**9, "month": None}, "why": ""}
    (line,) = [line for line in drawn(TRAINING | {"budget": daily}, 100) if "budget" in line]
    assert line.split(maxsplit=1)[1].strip() == "1.20 GB of 5.00 GB today"
    over = daily | {"why": "today's upload of 5 GB is used. Next exchange after 00:00"}
    (line,) = [line for line in drawn(TRAINING | {"budget": over}, 100) if "budget" in line]
    assert line.split(maxsplit=1)[1].strip() == over["why"]


# -- numbers that two views show

WHOLE: dict[str, Any] = json.loads((Path(__file__).parent / "status" / "training.json").read_text())


def test_the_outcomes_add_up_to_the_due_rounds_and_a_round_sat_out_is_one_of_those_missed() -> None:
    rounds = {"due": 180, "exchanged": 170, "solo": 8, "missed": 1, "sat_out": 1, "skipped": 5}
    told = round_outcomes(rounds)
    assert told == "170 exchanged, 8 solo, 1 missed (1 sat out), 1 under way or cut short"
    outside_brackets = re.sub(r"\(.*?\)", "", told)
    assert sum(map(int, re.findall(r"\d+", outside_brackets))) == rounds["due"]
    text = " ".join(status_text(read_status(WHOLE | {"rounds": rounds}), 0.0).split())
    written = f"{told} of 180 due (94% exchanged); beside these 5 skipped"
    assert f"so far {written}" in text
    assert row(TRAINING | {"rounds": rounds}, "rounds", 200) == written
    source = PageSource(home=Path(), report=lambda: read_status(WHOLE | {"rounds": rounds}))
    assert VolunteerAccount(source)()["work"]["participation"] == written


@pytest.mark.parametrize("nbytes", [1_000, 1_049, 9_994, 9_996, 10_499, 99_949, 592_700, 1_049_000, 1.0499e9, 2.7e12])
def test_no_amount_is_rounded_by_more_than_half_a_percent(nbytes: float) -> None:
    number, unit = amount(nbytes, "bytes").split()
    assert float(number) * {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit] == pytest.approx(nbytes, rel=0.0051)


def test_a_loss_has_the_same_unit_in_every_view() -> None:
    shown = [row(TRAINING, "loss"), row(TRAINING, "hold-out"), status_line(read_status(WHOLE))]
    shown += [
        line
        for line in status_text(read_status(WHOLE), 0.0).splitlines()
        if line.split()[:1] in (["loss"], ["hold-out"])
    ]
    assert len(shown) == 5
    assert all("nats a token" in text for text in shown), shown
