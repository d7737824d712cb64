"""A small swarm of real processes under several kinds of faults. The promises are checked in the journals."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from peer.lab.localswarm.plan import Churn, PeerSetups, SwarmPlan, derive_manifest
from peer.lab.localswarm.run import Swarm, check
from peer.lab.sim.faults import Fault
from peer.observe.event_codec import read_lines
from peer.observe.events import CheckpointFailed, Dropped, HelperBack, RoundEnded, RoundMissed, Started, TrainerDeath
from peer.run.manifest import default_text

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="chaos needs /proc and prlimit"),
    pytest.mark.processes,
    pytest.mark.nightly,
]

SETTINGS = ("sync.clock=seconds", "sync.sync_every=5", "train.total_rounds=8", "train.batch=2", "train.eval_windows=16")
PLAN = (
    Fault("kill_helper", 1, at=6.0),
    Fault("clock_jump", 0, at=7.0, seconds=12.0, amount=3600.0),
    Fault("kill_trainer", 2, at=11.0),
    Fault("stall", 1, at=14.0, seconds=4.0),
    Fault("sever", 0, at=21.0, seconds=4.0, others=(1,)),
)


def test_promises_hold_under_faults(tmp_path: Path) -> None:
    text = derive_manifest(
        default_text(),
        preset="noloco",
        settings=SETTINGS,
        rounds=None,
        steps=None,
        minutes=None,
        seed=1,
        own_default=False,
    )
    plan = SwarmPlan(
        peers=3,
        manifest=text,
        home=tmp_path / "swarm",
        seed=1,
        churn=Churn(faults=PLAN),
        setups=PeerSetups(speeds=dict.fromkeys((1, 2, 3), 0.2)),
    )
    swarm = Swarm(plan, lambda text: None)
    report = asyncio.run(swarm.run())
    check(report, plan.home)
    assert report["hung"] == []
    assert [row["kind"] for row in report["faults"]] == [fault.kind for fault in PLAN]
    for row in report["faults"]:  # how long a recovery takes depends on how busy this machine is
        assert row["recovered_s"] is not None or "exchanged no round" in row["why"], row
    assert any(row["recovered_s"] is not None for row in report["faults"])
    for number, row in enumerate(report["peers"]):
        book = row["ledger"]
        assert book["processed"] > 0
        assert book["processed"] == book["applied"] + book["dropped"] + book["outstanding"]
        journal = next((plan.home / f"peer-{number + 1}" / "runs").glob("*/journal.jsonl"))
        events = [line[0] for line in read_lines(journal) if line is not None]
        rounds = [event.round for event in events if isinstance(event, RoundEnded)]
        assert len(rounds) == len(set(rounds)), "one outcome a round"
        assert all(event.reason for event in events if isinstance(event, RoundEnded) and event.outcome != "exchanged")
        missed = [event.round for event in events if isinstance(event, RoundMissed)]
        assert max(rounds + missed) == 7, "it played to the end"
        assert sum(isinstance(event, Started) for event in events) == 1, "nobody was killed"
        died = [event for event in events if isinstance(event, TrainerDeath)]
        assert len(died) == (number == 2)
        assert bool(died) or not [event for event in events if isinstance(event, Dropped)]
        assert any(isinstance(event, HelperBack) for event in events) == (number == 1)
        assert not [event for event in events if isinstance(event, CheckpointFailed)]
