"""The output of `peer status` in typical states. The reports are those of real daemons, with the numbers of a longer
run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.observe.formatting import duration
from peer.observe.status.columns import WIDTH, ago, ahead
from peer.observe.status.notices import read_status
from peer.observe.status.text import status_text

FOLDER = Path(__file__).parent
NOW = 1795648000.0
"""2026-11-25 23:06:40 UTC."""


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def report(state: str) -> dict[str, Any]:
    """Return the report of a daemon in this state."""
    kept = {"paused": "training", "alone": "training", "ended": "bootstrap"}.get(state, state)
    told: dict[str, Any] = json.loads((FOLDER / f"{kept}.json").read_text())
    match state:
        case "paused":
            told |= {"status": "paused", "phase": "paused by you", "next_due_in_s": None}
            told["paused"] |= {"now": "paused by you since …", "since": NOW - 185, "until": NOW + 7200}
            told["paused"]["conditions"] = {
                "idle": {"value": False, "why": "you used this machine 40 s ago"},
                "plugged-in": {"value": None, "why": "this machine tells no battery"},
            }
        case "alone":
            told |= {"phase": "inner steps alone", "last_partner": "", "last_outcome": "solo", "peers": []}
            told["reachable"] = {"value": False, "why": "nobody got through in 3 tries"}
            told["directory"] |= {"state": "alone", "why": "no node of the run answers", "losses": 2, "neighbours": 0}
            told["directory"]["last_loss"] = "SIGKILL"
            told["membership"]["cut_off_s"] = 75.0
        case "ended":
            told |= {"status": "ended", "ends_at": NOW - 3600}
            told["kept"] |= {"ended": True, "why": "kept the last state, of round 2,000 (checked), from 4 peers"}
    return told


@pytest.mark.parametrize("state", ["training", "paused", "alone", "joining", "ended", "bootstrap"])
def test_the_text_of_a_state(state: str, request: pytest.FixtureRequest) -> None:
    text, kept = status_text(read_status(report(state)), NOW), FOLDER / f"{state}.txt"
    assert text + "\n" == kept.read_text(), f"if that is right: {kept} holds the former text"
    assert all(len(line) <= WIDTH for line in text.splitlines())


@pytest.mark.parametrize("dump", ["{", "[", "None", "True", "1.795e+09", "e-05"])
def test_nothing_is_dumped(dump: str) -> None:
    for state in ("training", "paused", "alone", "joining", "ended", "bootstrap"):
        assert dump not in status_text(read_status(report(state)), NOW), state


ALWAYS = {"run_id", "peer_id", "status", "uptime_s", "bytes_sent", "bytes_received"}
TOGETHER = {"tokens", "loss", "tokens_per_s", "seconds_training", "last_partner", "last_seconds"}
"""Keys that are present only together with `steps` and `last_outcome`."""


@given(st.sets(st.sampled_from(sorted(report("training").keys() - ALWAYS - TOGETHER))))
def test_any_part_may_be_missing_that_comes_later(missing: set[str]) -> None:
    """A joining daemon lacks many parts, and an older one the newest."""
    told = {name: value for name, value in report("training").items() if name not in missing}
    assert ": training, up 3 h 25 min" in status_text(read_status(told), NOW)


def test_text_of_others_is_harmless() -> None:
    told = report("training")
    told["refusals"][0]["reason"] = told["run"] = "\x1b[2J\x07nothing"
    assert "\x1b" not in status_text(read_status(told), NOW)
    assert "\x07" not in status_text(read_status(told), NOW)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.2, "just now"), (47, "47 s ago"), (190, "3 min ago"), (7500, "2 h 5 min ago"), (3e5, "3 days 11 h ago")],
)
def test_moments_are_relative(seconds: float, told: str) -> None:
    assert ago(seconds) == told
    assert ahead(seconds).removeprefix("in ") == (duration(seconds) if seconds > 1 else "now")


def test_params_that_were_refused_are_told_with_the_reason() -> None:
    told = report("training")
    told["partner_params"] |= {
        "why_unchecked": "the trainer did not answer in time",
        "last_refused": {"peer_id": "12D3KooWb", "round": 2, "reason": "it is worse"},
    }
    text = status_text(read_status(told), NOW)
    assert "the trainer did not answer in time" in text
    assert "in round 2: it is worse" in text
