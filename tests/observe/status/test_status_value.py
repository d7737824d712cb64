"""The status as a value: converted to JSON and back, read from other versions, and its notices in every view."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from peer.node.page import PageSource
from peer.observe.status.codec import from_json, to_json
from peer.observe.status.notices import read_status, with_notices
from peer.observe.status.text import status_line, status_text
from peer.observe.status.value import DaemonStatus, NoticeSeverity
from peer.observe.terminal_frame import History, render_frame
from peer.web.volunteer import VolunteerAccount
from tests.golden import freeze

WHOLE: dict[str, Any] = json.loads((Path(__file__).parent / "training.json").read_text())
PARTNER = f"12D3KooW{'x' * 38}UVWXYZ"
SHORT = "…UVWXYZ"

TROUBLES: dict[str, tuple[dict[str, Any], str]] = {
    "key_shared": ({"key_shared": "this key is in use on another machine"}, "this key is in use on another machine"),
    "paused": (
        {"paused": {"now": "quiet hours 22:00-06:00", "conditions": {}}},
        "quiet hours 22:00-06:00. Resume with `peer resume`.",
    ),
    "cut_off": (
        {"membership": {"cut_off_s": 300.0}},
        "nobody answers for 5 min: is this machine's connection down?",
    ),
    "suspected": (
        {"membership": {"suspected": [{"peer_id": PARTNER, "seconds": 9.0, "reason": "no answer"}]}},
        "is suspected for 9 s: no answer",
    ),
    "slow": (
        {"machine": {"unfit": ["the uplink is too slow"], "fixes": ["Raise --max-upload."]}},
        "the uplink is too slow. Raise --max-upload.",
    ),
    "directory": ({"directory": {"why": "rebuilding, 2nd time"}}, "rebuilding, 2nd time"),
    "helper_lost": ({"directory": {"losses": 2, "last_loss": "SIGKILL"}}, "restarted 2 times, last because SIGKILL"),
    "budget": ({"budget": {"why": "today's upload of 5 GB is used"}}, "today's upload of 5 GB is used"),
    "no_outer_step": ({"group": {"lacking": "2 of 4 are here"}}, "no outer step: 2 of 4 are here; the work stays"),
    "left_out": ({"group": {"left_out": [{"peer_id": PARTNER, "reason": "late"}]}}, f"{SHORT}: late"),
    "slow_uplink": (
        {"diagnosis": [{"what": "slow_uplink", "who": "you", "why": "your uplink: 0.8 Mbit/s"}]},
        "your uplink: 0.8 Mbit/s",
    ),
    "unchecked": ({"partner_params": {"why_unchecked": "no answer in time"}}, "no answer in time"),
    "params_refused": (
        {"partner_params": {"last_refused": {"peer_id": PARTNER, "round": 2, "reason": "it is worse"}}},
        f"params of {SHORT} in round 2: it is worse",
    ),
    "shunned": (
        {"out_of_favour": [{"peer_id": PARTNER, "seconds_left": 60, "reason": "checksum"}]},
        f"{SHORT} for 60 s: checksum",
    ),
    "declined": (
        {"refusals": [{"seconds_ago": 12.0, "caller": "203.0.113.9", "code": "clock", "reason": "90 s ahead"}]},
        "12 s ago, 203.0.113.9: 90 s ahead (clock)",
    ),
}
"""For each code of a notice: a status that causes it, and words that every view shows."""


def troubled(code: str) -> DaemonStatus:
    return read_status(WHOLE | {"diagnosis": [], "refusals": []} | TROUBLES[code][0])


def terminal(status: DaemonStatus) -> str:
    console = Console(file=io.StringIO(), width=200, color_system=None, legacy_windows=False)
    console.print(render_frame(status, History()))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def page(status: DaemonStatus) -> str:
    async def act(command: str, request: dict[str, Any]) -> dict[str, Any]:
        return {}

    findings = VolunteerAccount(PageSource(home=Path(), report=lambda: status, control=act))()["findings"]
    return "\n".join(f"{one['about']}: {one['sentence']}" + (f". {one['fix']}" * bool(one["fix"])) for one in findings)


@pytest.mark.parametrize("code", TROUBLES)
def test_a_condition_is_the_same_sentence_in_terminal_text_page_and_json(code: str) -> None:
    status, words = troubled(code), TROUBLES[code][1]
    [notice] = status.notices
    assert (notice.code, notice.text) == (code, words)
    assert [one["sentence"] for one in to_json(status)["notices"]] == [notice.sentence]
    views: dict[str, Callable[[], str]] = {
        "terminal": lambda: terminal(status),
        "text": lambda: " ".join(status_text(status, 0.0).split()),
        "page": lambda: page(status),
    }
    for name, shown in views.items():
        assert (words in shown()) is (name != "page" or not notice.local), name
    line = notice.brief or f"{notice.about}: {notice.sentence}"
    assert (line in status_line(status)) is (notice.severity is NoticeSeverity.SERIOUS)


def test_a_reason_to_pause_has_the_same_row_in_text_and_page() -> None:
    """A condition has a row even while it does not forbid training, and a new condition needs no code in the views."""
    conditions = {"moonlight": {"value": False, "why": "the moon is up"}, "idle": {"value": None, "why": "not told"}}
    status = read_status(WHOLE | {"paused": {"now": "no", "quiet_hours": "22:00-06:00", "conditions": conditions}})
    shown = VolunteerAccount(PageSource(home=Path(), report=lambda: status))()["peer"]["conditions"]
    assert shown == [
        "quiet hours: every day 22:00-06:00",
        "moonlight: no: the moon is up",
        "idle: not known yet: not told",
    ]
    text = " ".join(status_text(status, 0.0).split())
    assert all(row.replace(": ", " ", 1) in text for row in shown)


def test_no_page_shows_a_notice_that_may_name_an_address() -> None:
    assert {code for code in TROUBLES if troubled(code).notices[0].local} == {
        "suspected",
        "left_out",
        "shunned",
        "declined",
    }


def test_what_matters_most_comes_first() -> None:
    told = WHOLE | {"membership": {"cut_off_s": 75.0}, "directory": {"losses": 1, "last_loss": "SIGKILL"}}
    told["diagnosis"] = [{"what": "nothing", "who": "", "why": "nothing unusual in 12 exchanges"}]
    severities = [notice.severity for notice in read_status(told).notices]
    assert severities == sorted(
        severities, key=[NoticeSeverity.SERIOUS, NoticeSeverity.WARNING, NoticeSeverity.NOTE].index
    )
    assert set(severities) == set(NoticeSeverity)


# -- JSON --------------------------------------------------------------------------------------------------------------


def example(shape: Any) -> Any:
    """Return a JSON value with a frozen shape."""
    if isinstance(shape, dict):
        return {name: "warning" if name == "severity" else example(one) for name, one in shape.items()}
    if shape in (["float|int"], [["str"]]):  # an evaluation, and labels with their values
        return [7, 2.5, 3.5] if shape == ["float|int"] else [["device", "cpu"]]
    if isinstance(shape, list):
        return [example(one) for one in shape]
    word = shape.partition("|")[0]
    return {"str": "text", "int": 7, "float": 2.5, "bool": True, "null": None}[word]


@pytest.mark.parametrize(("file", "role"), [("pair", "pair"), ("group", "group"), ("pair", "bootstrap")])
def test_every_frozen_key_goes_through_the_value_and_back(file: str, role: str) -> None:
    told = example(freeze.frozen_swarm(file).status[role])
    status = read_status(told)
    assert to_json(status) == told
    assert from_json(DaemonStatus, json.loads(json.dumps(to_json(status)))) == status


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(WHOLE)), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(WHOLE)) | st.text(max_size=5), JUNK, max_size=8))
def test_a_status_of_another_version_is_read_as_far_as_it_goes(told: dict[str, Any]) -> None:
    """Missing, unknown and mistyped values do not raise."""
    status = read_status(WHOLE | told)
    json.dumps(to_json(status))
    assert status_text(status, 0.0)
    assert terminal(status)
    assert status_line(status)


def test_the_notices_of_an_older_daemon_are_made_of_its_facts() -> None:
    told = WHOLE | {"membership": {"cut_off_s": 75.0}}
    assert "notices" not in told
    assert [notice.code for notice in read_status(told).notices] == ["cut_off", "slow_uplink", "declined"]
    status = read_status(told | {"notices": [{"code": "new", "sentence": "of a later version", "severity": "?"}]})
    assert [(notice.code, notice.sentence) for notice in status.notices] == [("new", "of a later version")]
    assert with_notices(read_status({})).notices == ()
