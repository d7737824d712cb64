"""A real swarm with the records of a key farm in its directory: it continues to exchange, and does not flood the
innocent address that these name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from peer.cli.swarm import command
from peer.errors import UsageError
from peer.lab.attack.sybil_records import MOST_RECORDS, RECORDS, records_asked
from peer.protocol.policy.dial_budget import ADDRESS

PEERS, KEYS = 3, 60
ROUND_S, ROUNDS = 4, 9
BOUND_S = 240
ENOUGH = 0.6
"""Participation in a short run beside other tests. Peers that believed every record would hardly ever meet."""
NODES = PEERS + 1
"""Number of nodes that dial: the peers and the bootstrap node."""


def play(folder: Path) -> dict[str, Any]:
    report = folder / "report.json"
    choices = [
        "--peers",
        str(PEERS),
        "--preset",
        "noloco",
        "--minutes",
        str(ROUNDS * ROUND_S / 60),
        "--report",
        str(report),
    ]
    choices += ["--set", "sync.clock=seconds", "--set", f"sync.sync_every={ROUND_S}", "--step-seconds", "0.5"]
    choices += ["--attack", f"sybil-records:{KEYS}", "--home", str(folder / "home")]
    done = subprocess.run(
        [sys.executable, "-m", "peer", "swarm", *choices],
        capture_output=True,
        timeout=BOUND_S,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")[-3000:]
    told: dict[str, Any] = json.loads(report.read_text())
    return told


@pytest.mark.nightly
@pytest.mark.processes
def test_honest_peers_exchange_and_the_named_address_is_left_alone(tmp_path: Path) -> None:
    told = play(tmp_path)
    sybils = told["sybil_records"]
    assert sybils["records"] == KEYS
    assert sybils["seen"] >= KEYS / 2, "the records were there to be believed"
    minutes = sybils["seconds"] / 60
    assert sybils["connections"] <= NODES * (ADDRESS.burst + minutes + 1)
    assert told["swarm"]["participation"] >= ENOUGH


def test_the_attack_is_named_with_a_number_of_records_or_none() -> None:
    assert records_asked(["2@flip", "sybil-records"]) == (RECORDS, ("2@flip",))
    assert records_asked(["sybil-records:40"]) == (40, ())
    assert records_asked(["2@sybil-records"]) == (0, ("2@sybil-records",))
    for wrong in ("sybil-records:x", "sybil-record"):
        with pytest.raises(UsageError) as told:
            records_asked([wrong])
        assert "sybil-records:N" in told.value.fix


@pytest.mark.parametrize("count", [0, MOST_RECORDS + 1])
def test_an_impossible_number_of_records_is_refused(count: int) -> None:
    with pytest.raises(UsageError, match="sybil-records"):
        CliRunner().invoke(command, ["--attack", f"sybil-records:{count}"], catch_exceptions=False)
