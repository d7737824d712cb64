"""Streaming presets on real processes: trainer, gRPC and DHT included."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.nightly]

ROUNDS = 4


def swarm(folder: Path, peers: int, *choices: str) -> dict[str, Any]:
    report = folder / "report.json"
    length = [
        "--peers",
        str(peers),
        "--rounds",
        str(ROUNDS),
        "--set",
        "sync.clock=steps",
        "--set",
        "sync.sync_every=10",
    ]
    command = [sys.executable, "-m", "peer", "swarm", *length, "--home", str(folder / "home"), "--report", str(report)]
    ran = subprocess.run([*command, *choices], capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    loaded: dict[str, Any] = json.loads(report.read_text())
    assert all(loaded["swarm"]["ledger"][name] >= 0 for name in ("applied", "dropped", "outstanding"))
    book = loaded["swarm"]["ledger"]
    assert book["processed"] == book["applied"] + book["dropped"] + book["outstanding"]
    assert loaded["swarm"]["val_loss_mean"] < 5.0, "from 5.6"
    return loaded


def texts(folder: Path, own: bytes) -> Path:
    """Write the texts of a peer: its own sentence repeated, and the common hold-out."""
    (folder / "holdout").mkdir(parents=True)
    (folder / "own.txt").write_bytes(own * 2000)
    (folder / "holdout" / "all.txt").write_bytes(b"the cat sat here. the dog ran away. " * 100)
    return folder


def test_the_members_of_a_group_end_with_the_same_bits(tmp_path: Path) -> None:
    cats, dogs = texts(tmp_path / "cats", b"the cat sat here. "), texts(tmp_path / "dogs", b"the dog ran away. ")
    data = ("--set", "data.kind=text", "--data", str(cats), "--data", f"2@{dogs}")
    report = swarm(tmp_path, 3, "--preset", "streaming-diloco", *data)
    digests = {peer["outer_digest"] for peer in report["peers"]}
    assert len(digests) == 1
    assert None not in digests
    assert report["swarm"]["participation"] >= 0.75


def test_streaming_pairs_send_seven_bits(tmp_path: Path) -> None:
    report = swarm(tmp_path, 2, "--preset", "streaming-noloco", "--set", "codec=modulo7")
    paired = sum(peer["rounds"]["paired"] for peer in report["peers"])
    assert paired >= ROUNDS
    elements = report["peers"][0]["ledger"]["processed"] // report["peers"][0]["tokens"]
    sent = sum(peer["bytes_sent"] for peer in report["peers"])
    assert sent / paired < 2 * (elements / 2), "less than bf16, what is asked for included"
    assert report["swarm"]["replica_spread"] == pytest.approx(0.0, abs=0.2)
