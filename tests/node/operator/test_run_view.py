"""The view of a run must contain signed summaries only, and no impossible claims."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peer.aio.threads import inline
from peer.errors import HomeUnusable
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.node.operator.run_view import KEEP_EVERY_S, RunView
from peer.observe.status.codec import to_json
from peer.protocol.messages import RunId, Status
from peer.protocol.summary.book import DROPS, FORGED, RATE, SILENT_S, STALE, UNLISTED_S
from peer.signed_summary import seal_summary
from tests.support.signed_receipts import Signing
from tests.support.summaries import NOW, SetClock, shown, signed_summary, summary_of, view_at

KEYS = {"run", "round", "peers", "totals", "loss", "amendments", "join", "dropped", "note"}


def tell(view: RunView, peer: Signing, at: float = NOW, block: str = "", **said: Any) -> str:
    return view.on_summary(peer.id, block or peer.id, signed_summary(peer, at, **said))


def test_the_view_of_five_peers_is_as_computed_by_hand() -> None:
    view, peers = view_at(SetClock()), sorted((Signing() for _ in range(5)), key=lambda one: one.id)
    for number, one in enumerate(peers):
        assert tell(view, one, tokens=1000 * number, loss=3.0 + number / 10, tokens_per_s=10.0 * number) == ""
    view.tick()
    report = to_json(view.report())
    assert set(report) == KEYS
    assert report["run"] | {"run_id": "", "parameters": 0} == {
        "name": "w",
        "run_id": "",
        "preset": "noloco",
        "parameters": 0,
        "started": NOW - 3600.0,
        "total_rounds": 40,
        "ended": False,
    }
    assert report["totals"] == {
        "peers": 5,
        "networks": 5,
        "median_tokens_per_s": 20.0,
        "participation": 0.8,
        "participation_of": 5,
        "spread": 0.2,
        "spread_of": 5,
    }
    assert report["loss"] == [{"t": NOW, "round": 8, "median": 3.2, "low": 3.1, "high": 3.3, "count": 5}]
    assert report["peers"][1] == {
        "peer_id": peers[1].id,
        "state": "training",
        "round": 10,
        "tokens": 1000,
        "tokens_per_s": 10.0,
        "loss": 3.1,
        "exchanges": 8,
        "solo": 2,
        "refused": 0,
        "missed": 0,
        "due": 10,
        "bytes_up": 4000,
        "bytes_down": 5000,
        "device": "cpu",
        "seen_s_ago": 0.0,
        "version": "0.7.0",
    }
    assert report["dropped"] == dict.fromkeys(DROPS, 0)
    json.dumps(report, allow_nan=False)


def test_a_loss_stands_at_a_round_in_which_somebody_evaluated() -> None:
    view = view_at(SetClock())
    for loss_round in (15, 15, 20, 20):
        tell(view, Signing(), loss_round=loss_round)
    view.tick()
    assert [point["round"] for point in to_json(view.report())["loss"]] == [15]


def test_a_forged_summary_is_dropped_and_counted() -> None:
    view, mallory, victim = view_at(SetClock()), Signing(), Signing()
    good = signed_summary(mallory)
    flipped = bytes([*good[:60], good[60] ^ 1, *good[61:]])
    foreign = seal_summary(replace(summary_of(mallory.id), run_id=RunId(b"x" * 32)), mallory.identity)
    for raw in (flipped, signed_summary(victim), foreign, b"", b"\xff" * 5000):
        assert view.on_summary(mallory.id, "block", raw) == FORGED
    assert to_json(view.report())["dropped"] == {FORGED: 5, STALE: 0, RATE: 0}
    assert to_json(view.report())["peers"] == []


def test_a_replay_and_a_flood_are_dropped_and_counted() -> None:
    view, peer = view_at(SetClock()), Signing()
    raw = signed_summary(peer)
    told = [view.on_summary(peer.id, "home", raw) for _ in range(10)]
    assert told == ["", *[STALE] * 5, *[RATE] * 4]
    assert to_json(view.report())["dropped"] == {FORGED: 0, STALE: 5, RATE: 4}


def test_what_an_older_version_kept_is_read_without_its_board(tmp_path: Path) -> None:
    kept = {"board": {"a": ["home", 3, 6000, [1], [[1, 0]], [-1, -1]]}, "losses": [[NOW, 8, 3.5, 3.4, 3.6, 5]]}
    (tmp_path / "kept").write_text(json.dumps(kept | {"tokens": {"a": 1000}}))
    report = to_json(view_at(SetClock(), tmp_path / "kept").report())
    assert "board" not in report
    assert [point["median"] for point in report["loss"]] == [3.5]


def test_a_summary_with_an_invented_receipt_is_dropped() -> None:
    view, peer, other = view_at(SetClock()), Signing(), Signing()
    invented = replace(shown(other, peer, 3), signature=b"s" * 64)
    assert tell(view, peer, receipts=(invented,)) == FORGED


@pytest.mark.parametrize("claim", ["tokens", "tokens_per_s", "loss", "due"])
def test_one_liar_of_eight_moves_little(claim: str) -> None:
    clock = SetClock()
    honest, lied = view_at(clock), view_at(clock)
    peers = [Signing() for _ in range(8)]
    for number, one in enumerate(peers):
        said = {"loss": 3.0 + number / 100, "tokens": 180_000, "tokens_per_s": 50.0}
        tell(honest, one, **said)
        lie = {claim: 2.0**50 if claim in ("tokens_per_s", "loss") else 2**50} if number == 7 else {}
        tell(lied, one, **{**said, **lie})
    for view in (honest, lied):
        view.tick()
    before, after = to_json(honest.report()), to_json(lied.report())
    assert abs(after["loss"][0]["median"] - before["loss"][0]["median"]) <= 0.01
    assert after["totals"]["spread"] <= 0.06
    assert after["totals"]["participation"] >= before["totals"]["participation"] - 0.8 / 8 - 1e-9
    assert after["totals"]["median_tokens_per_s"] == before["totals"]["median_tokens_per_s"]
    assert after["totals"]["peers"] == after["totals"]["networks"] == 8


def test_a_peer_that_says_nothing_more_is_shown_as_silent_and_counts_no_more() -> None:
    clock = SetClock()
    view, peer, other = view_at(clock), Signing(), Signing()
    tell(view, peer)
    tell(view, other)
    clock.at = NOW + SILENT_S + 1
    tell(view, other, clock.at, status=Status.PAUSED)
    states = {line["peer_id"]: line["state"] for line in to_json(view.report())["peers"]}
    assert states == {peer.id: "silent", other.id: "paused"}
    assert to_json(view.report())["totals"]["peers"] == to_json(view.report())["totals"]["networks"] == 1


def test_a_peer_that_left_the_directory_is_silent_soon() -> None:
    clock, gone = SetClock(), set[str]()
    view, peer, other = view_at(clock, listed=lambda one: one not in gone), Signing(), Signing()
    tell(view, peer)
    tell(view, other)
    gone.add(peer.id)
    assert to_json(view.report())["totals"]["peers"] == 2, "it has just been heard"
    clock.at += UNLISTED_S + 1
    assert {line["peer_id"]: line["state"] for line in to_json(view.report())["peers"]}[peer.id] == "silent"
    assert to_json(view.report())["totals"]["peers"] == 1


def test_what_was_counted_outlives_a_restart(tmp_path: Path) -> None:
    peer, other, kept = Signing(), Signing(), tmp_path / "run_view.json"

    async def main() -> tuple[dict[str, Any], dict[str, Any]]:
        clock = VirtualClock()
        before = view_at(clock, kept)
        tell(before, peer, clock.now(), receipts=(shown(other, peer, 1),))
        running = asyncio.create_task(before.run(inline, print))
        await clock.sleep(KEEP_EVERY_S + 5)
        running.cancel()
        await asyncio.wait({running})
        return to_json(before.report()), to_json(view_at(clock, kept).report())

    before, after = run_virtual(main())
    assert before["loss"] == after["loss"] != []
    assert after["peers"] == []


def test_a_disk_that_takes_nothing_is_told_once_and_the_view_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def full(path: Path, data: bytes) -> None:
        raise HomeUnusable("cannot write it: the disk is full")

    monkeypatch.setattr("peer.node.operator.run_view.write_whole", full)

    async def main() -> None:
        clock = VirtualClock()
        view = view_at(clock, tmp_path / "run_view.json")
        running = asyncio.create_task(view.run(inline, said.append))
        await clock.sleep(10 * KEEP_EVERY_S)
        assert not running.done()
        running.cancel()
        await asyncio.wait({running})

    run_virtual(main())
    assert len(said) == 1
    assert "disk is full" in said[0]


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"losses": [1]}', b"[" * 10**5])
def test_a_damaged_file_counts_as_none(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "kept").write_bytes(damage)
    assert to_json(view_at(SetClock(), tmp_path / "kept").report())["loss"] == []
