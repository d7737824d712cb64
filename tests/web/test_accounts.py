"""The accounts that pages show are bounded and contain no network addresses."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peer.node.page import PageSource
from peer.observe.events import RoundEnded
from peer.observe.journal import Listener
from peer.observe.status.notices import read_status
from peer.web.bounds import MOST_CHARACTERS, bounded
from peer.web.curve import MOST_POINTS, ThinnedCurve, thinned
from peer.web.public import SHOWN_PEERS, PublicAccount
from peer.web.volunteer import SHOWN_EXCHANGES, SHOWN_PARTNERS, VolunteerAccount

MARKUP = "<img src=x onerror=alert(1)>\n\ndata: forged\n\n"


async def nothing(command: str, request: dict[str, Any]) -> dict[str, Any]:
    return {}


def report(**more: Any) -> dict[str, Any]:
    given = {
        "role": "peer",
        "peer_id": "12D3me",
        "run_id": "ab" * 32,
        "run": "tiny",
        "status": "training",
        "phase": "training",
        "uptime_s": 12.0,
        "endpoints": ["203.0.113.7:4810"],
        "reachable": {"value": True, "why": "reached at 203.0.113.7:4810"},
        "bytes_sent": 100,
        "bytes_received": 200,
        "control_bytes": {"sent": {"hello": 5, "offers": 6}, "received": {"hello": 7}},
    }
    return given | more


def peer(number: int | str, **more: Any) -> dict[str, Any]:
    told = {
        "peer_id": f"12D3{number}",
        "status": "training",
        "round": 3,
        "endpoints": ["198.51.100.9:1"],
        "pairs": "yes",
    }
    return told | {"path": {"path": "direct", "via": "", "why": "it answers at 198.51.100.9:1"}} | more


def account_of(told: dict[str, Any], heard: list[Listener] | None = None) -> VolunteerAccount:
    listen: Callable[[Listener], None] = [].append if heard is None else heard.append
    source = PageSource(
        home=Path(),
        report=lambda: read_status(told),
        control=nothing,
        evaluations=lambda: ((0, 5.5, 8.0),),
        listen=listen,
    )
    return VolunteerAccount(source, lambda: 1000.0)


def ended(round_: int, **more: Any) -> RoundEnded:
    given: dict[str, Any] = {"round": round_, "fragment": 0, "outcome": "exchanged", "partner": "12D3a", "reason": ""}
    given |= {"applied": 1, "dropped": 0, "upto": 1, "steps": 1, "bytes_sent": 10, "bytes_received": 11, "seconds": 0.5}
    return RoundEnded(**(given | more))


def test_an_account_while_joining_has_what_there_is() -> None:
    parts = account_of(report(status="joining", phase="getting the state"))()
    assert parts["peer"]["started"] == 988
    assert parts["work"]["round"] is None
    assert parts["bytes"] == {
        "sent": 100,
        "received": 200,
        "control_sent": 11,
        "control_received": 7,
        "line": None,
        "caps": {"sent": None, "received": None},
        "budget": None,
    }
    assert parts["curve"] == {"training": [], "validation": [[0.0, 5.5]]}


def test_the_numbers_are_those_of_the_status() -> None:
    told = report(round=7, total_rounds=9, steps=3, tokens=1536, loss=2.5, tokens_per_s=100.0, next_due_in_s=2.4)
    told |= {"rounds": {"due": 7, "exchanged": 6}, "diagnosis": [{"what": "link", "who": "12D3a", "why": "slow"}]}
    parts = account_of(told)()
    for name in ("round", "total_rounds", "steps", "tokens", "loss", "tokens_per_s", "rounds"):
        assert parts["work"][name] == told[name]
    assert parts["work"]["due"] == 1002
    assert [(one["code"], one["about"], one["sentence"]) for one in parts["findings"]] == [("link", "partner", "slow")]
    assert parts["curve"]["training"] == [[7, 2.5]]


def test_the_last_rounds_come_from_the_journal() -> None:
    heard: list[Listener] = []
    account = account_of(report(), heard)
    for round_ in range(SHOWN_EXCHANGES + 5):
        heard[0](ended(round_), 100.0 + round_)
    shown = account()["rounds"]
    assert [one["round"] for one in shown] == list(range(SHOWN_EXCHANGES + 4, 4, -1))
    assert shown[0]["outcome"] == "exchanged"


def test_no_address_of_anybody_is_shown() -> None:
    told = report(round=1, peers=[peer(1), peer(2)])
    assert "203.0.113.7" not in json.dumps(account_of(told)())
    assert "198.51.100.9" not in json.dumps(account_of(told)())


def test_strangers_cannot_make_an_account_large() -> None:
    long = MARKUP * 10_000
    many = [peer(number, pairs=long, status="training") for number in range(5000)]
    findings = [{"what": "link", "who": long, "why": long}] * 5000
    heard: list[Listener] = []
    account = account_of(report(round=1, peers=many, diagnosis=findings, phase=long), heard)
    for round_ in range(500):
        heard[0](ended(round_, partner=long, reason=long), 1.0)
    parts = account()
    assert len(parts["partners"]) == SHOWN_PARTNERS
    assert len(json.dumps(parts)) < 250_000
    assert len(parts["peer"]["phase"]) == MOST_CHARACTERS


def test_peers_that_the_status_names_first_are_not_pushed_off_the_page_by_others_names() -> None:
    many = [peer(9), *(peer(f"0{n}") for n in range(3 * SHOWN_PARTNERS)), peer(8, status="paused")]
    shown = [one["peer_id"] for one in account_of(report(round=1, peers=many))()["partners"]]
    assert shown[0] == "12D39"
    assert len(shown) == SHOWN_PARTNERS


def test_a_public_account_is_bounded_and_says_when_peers_were_heard_of() -> None:
    long = MARKUP * 10_000
    rows = [{"peer_id": f"p{n}", "seen_s_ago": 4.0, "version": long, "loss": math.nan} for n in range(5000)]
    view = {
        "run": {"name": "tiny"},
        "round": 3,
        "peers": rows,
        "loss": [{"round": n, "median": 2.0} for n in range(9999)],
        "amendments": [{"number": n, "what": "lr"} for n in range(9999)],
        "join": {"ticket": "peersw" + "a" * 7000},
    }
    told = {"view": view, "kept": {"state": {"round": 2}, "why": "", "ended": False}}
    parts = PublicAccount(PageSource(home=Path(), report=lambda: read_status(told)), lambda: 1000.0)()
    assert parts["run"]["round"] == 3
    assert len(parts["peers"]) == SHOWN_PEERS
    assert parts["peers"][0]["seen"] == 996
    assert parts["peers"][0]["loss"] is None
    assert parts["curve"][-1]["round"] == 9998
    assert parts["join"]["ticket"] == view["join"]["ticket"]  # type: ignore[index]
    assert len(json.dumps(parts, allow_nan=False)) < 300_000


def test_a_node_that_knows_nothing_yet_has_an_account() -> None:
    parts = PublicAccount(PageSource(home=Path(), report=lambda: read_status({})), lambda: 1000.0)()
    assert parts["peers"] == []
    assert parts["totals"] is None


def test_bounded_keeps_what_is_small() -> None:
    small = {"a": [1, 2.5, None, True, "text"], "b": {"c": "d"}}
    assert bounded(small) == small
    assert bounded([math.inf, object()]) == [None, None]
    deep: Any = []
    for _ in range(50):
        deep = [deep]
    assert len(json.dumps(bounded(deep))) < 50


def test_a_curve_of_any_length_stays_short_and_keeps_its_shape() -> None:
    curve = ThinnedCurve()
    for round_ in range(100_000):
        curve.add(round_, 1.0 / (round_ + 1))
    curve.add(100_001, math.nan)
    curve.add(100_002, None)
    xs = [x for x, _ in curve.points]
    assert MOST_POINTS / 4 < len(xs) <= MOST_POINTS
    assert xs == sorted(set(xs))
    assert xs[0] == 0
    assert xs[-1] > 99_000
    gaps = [b - a for a, b in itertools.pairwise(xs)]
    assert max(gaps) <= 4 * min(gaps)


def test_thinning_keeps_both_ends() -> None:
    points = [(float(n), 0.0) for n in range(5000)]
    kept = thinned(points)
    assert len(kept) == MOST_POINTS
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert thinned(points[:3]) == points[:3]
