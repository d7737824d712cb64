"""A report shows a loss as the last only if it is that of the last state."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from peer.identity import Identity
from peer.lab.localswarm.report import PeerAccount, last_state_evaluated, replica_spread, swarm_report, table
from peer.observe.events import Evaluated, Event, Leaving, Left, RoundEnded, TrainingBegan
from peer.observe.totals import Ledger
from peer.run.manifest import write_new


def evaluated(round_: int) -> Evaluated:
    return Evaluated(round=round_, loss=2.0, bits_per_byte=3.0)


def stepped(round_: int) -> Event:
    return RoundEnded(
        round=round_,
        fragment=0,
        outcome="solo",
        partner="",
        reason="",
        applied=1,
        dropped=0,
        upto=1,
        steps=1,
        bytes_sent=0,
        bytes_received=0,
        seconds=0.0,
    )


ENDS = [Leaving(reason="told to leave"), Left(exit_code=0)]


def test_an_evaluation_counts_until_the_state_moves() -> None:
    first = evaluated(0)
    assert last_state_evaluated([first, *ENDS]) == first
    assert last_state_evaluated([first, stepped(0), *ENDS]) is None
    last = evaluated(1)
    assert last_state_evaluated([first, stepped(0), *ENDS[:1], last, *ENDS[1:]]) == last
    assert last_state_evaluated([]) is None


def row(last: float | None) -> dict[str, object]:
    counts = dict.fromkeys(("paired", "solo", "refused", "failed"), 1)
    losses = {"val_loss_first": 5.5, "val_loss_last": last, "val_loss_round": 3}
    return {"exit_code": 0, "killed": False, "steps": 9, "rounds": counts, "bytes_sent": 0, **losses}


def test_the_table_names_the_peers_whose_last_state_has_no_loss() -> None:
    zeros = dict.fromkeys(("processed", "applied", "dropped", "outstanding"), 0)
    swarm = dict.fromkeys(("val_loss_mean", "replica_spread", "participation", "rounds_ended_in_time"), None)
    sums = {**swarm, "rounds_closed_in_time": None, "tokens_per_s": 0.0, "ledger": zeros}
    lines = table({"peers": [row(4.5), row(None)], "swarm": sums, "faults": [], "orders": []}).splitlines()
    assert lines[1].split()[8:10] == ["5.500", "4.500"]
    assert lines[2].split()[8:10] == ["5.500", "-"]
    assert lines[-3] == "peer 2 was not evaluated after round 3"


SHARES = ("participation", "rounds_ended_in_time", "rounds_closed_in_time")


def sums(peer: dict[str, object] | None = None, **shares: float | None) -> str:
    """Return the report's table for a swarm of one peer."""
    book = dict.fromkeys(("processed", "applied", "dropped", "outstanding"), 0)
    swarm = {"val_loss_mean": 4.5, "replica_spread": 0.1, **shares, "tokens_per_s": 3.0, "ledger": book}
    return table({"peers": [peer or row(4.5)], "swarm": swarm, "faults": [], "orders": []})


def test_the_sums_stand_below_each_other_and_none_is_empty() -> None:
    names = ("participation", "rounds_ended_in_time", "rounds_closed_in_time")
    lines = sums(**dict.fromkeys(names, 0.98)).splitlines()[3:-2]
    assert len(lines) == 7
    assert all(line[36] == " " and line[37] != " " for line in lines), "values begin in one column"
    counted_in_steps = sums(**dict.fromkeys(names)).splitlines()[3:-2]
    assert len(counted_in_steps) == 4
    assert not any(line.endswith("-") for line in counted_in_steps)


def test_the_tutorial_shows_the_table_that_is_printed() -> None:
    names = ("participation", "rounds_ended_in_time", "rounds_closed_in_time")
    head, first, *_, ledger, _, _ = sums(**dict.fromkeys(names, 0.98)).splitlines()
    page = (Path(__file__).parents[3] / "docs" / "tutorials" / "first-swarm.md").read_text().splitlines()
    assert head in page
    assert len(first) == len(page[page.index(head) + 1]) == len(head)
    assert ledger in page
    assert "`ledger (processed -" in (Path(__file__).parents[3] / "README.md").read_text()


def test_tokens_a_second_are_by_the_clock_and_a_mean_names_how_many(tmp_path: Path) -> None:
    """Two peers train from 100 s to 130 s; their pauses are part of that time. Only one was evaluated at its last
    state."""
    signed = write_new(tmp_path / "run.toml", Identity.generate(), ["sync.clock=steps", "sync.sync_every=10"])
    counts = {"seconds_training": 2.0, "seconds_waiting": 1.0, "tokens": 600}

    def peer(began: float, ended: float, last: float | None) -> PeerAccount:
        events = [(began, TrainingBegan(round=0)), (ended, stepped(1))]
        return PeerAccount(row(last) | counts, Ledger(0, 0, 0, 0), events, None, None)

    accounts = [peer(100.0, 129.0, 4.5), peer(102.0, 130.0, None)]
    report = swarm_report(signed, 0, 40.0, accounts) | {"orders": []}
    assert report["swarm"]["tokens_per_s"] == 1200 / 30
    assert "validation loss (mean of 1 of 2)     4.500 nats a token" in table(report)


def test_bytes_sent_are_rounded_by_half_a_percent() -> None:
    for nbytes in (12_345, 1_519_000, 23_456_789, 1_234_000_000):
        shown = sums(row(4.5) | {"bytes_sent": nbytes}, **dict.fromkeys(SHARES)).splitlines()[1].split()[-1]
        assert float(shown) == pytest.approx(nbytes / 1e6, rel=0.005)


def test_the_replica_spread_by_hand() -> None:
    """Two replicas at distance 1 from a mean of length 5. A peer without a checkpoint is left out."""
    outers = [torch.tensor([3.0, 5.0]), torch.tensor([3.0, 3.0]), None]
    assert replica_spread(outers) == pytest.approx(1 / 5)
