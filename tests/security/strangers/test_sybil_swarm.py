"""A real swarm amid the records of a key farm, with a donor that lies: it goes on exchanging, the innocent address is
left alone, and a newcomer begins as the honest are."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner

from peer.cli.swarm import command
from peer.errors import UsageError
from peer.lab.attack.sybil_records import MOST_RECORDS, RECORDS, records_asked
from peer.protocol.policy.dial_budget import ADDRESS

PEERS, KEYS = 3, 60
ROUND_S, ROUNDS = 4, 16
BOUND_S = 300
ENOUGH = 0.6
"""Participation in a short run beside other tests. Peers that believed every record would hardly ever meet."""
NODES = PEERS + 2
"""Those that dial: the peers, the newcomer and the bootstrap node."""
UNTRAINED = math.log(256)
"""Nats of a guess among all bytes. The noise that a liar gives has no less."""


@dataclass(frozen=True)
class Played:
    report: dict[str, Any]
    printed: str


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """A swarm amid the records, one of whose peers gives newcomers noise of a round far ahead. A newcomer joins it."""
    folder = tmp_path_factory.mktemp("s")
    report = folder / "report.json"
    choices = ["--peers", str(PEERS), "--rounds", str(ROUNDS), "--join", "4@30", "--report", str(report)]
    choices += ["--set", "sync.clock=seconds", "--set", f"sync.sync_every={ROUND_S}", "--step-seconds", "0.4"]
    choices += ["--set", "train.eval_every=1", "--home", str(folder / "home")]
    choices += ["--attack", f"sybil-records:{KEYS}", "--attack", "2@donor"]
    done = subprocess.run(
        [sys.executable, "-m", "peer", "swarm", *choices],
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return Played(json.loads(report.read_text()), done.stdout)


def test_honest_peers_exchange_and_the_named_address_is_left_alone(played: Played) -> None:
    sybils = played.report["sybil_records"]
    assert sybils["records"] == KEYS
    assert sybils["seen"] >= KEYS / 2, "the records were there to be believed"
    minutes = sybils["seconds"] / 60
    assert sybils["connections"] <= NODES * (ADDRESS.burst + minutes + 1)
    assert played.report["swarm"]["participation"] >= ENOUGH


def test_a_newcomer_beside_a_lying_donor_begins_as_the_honest_are(played: Played) -> None:
    attack = played.report["attack"]
    (newcomer,) = attack["newcomers"]  # those who began with the run took no state of a round ahead
    assert newcomer["donor"] not in attack["liars"]
    assert newcomer["loss"] is not None
    # A newcomer is some steps behind the others, on a loaded machine by up to a nat. It is far from noise.
    assert newcomer["loss"] < (newcomer["others_loss"] + UNTRAINED) / 2
    assert "state of a newcomer                  from an honest peer" in played.printed


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
