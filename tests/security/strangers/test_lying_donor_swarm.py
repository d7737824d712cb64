"""Real processes: a donor that serves noise of a far round does not harm joiners."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.nightly]

UNTRAINED = math.log(256)
"""Loss in nats of a uniform guess among all bytes. The loss of a liar's noise is at least as high."""


def test_a_newcomer_beside_a_lying_donor_begins_as_the_honest_are(tmp_path: Path) -> None:
    command = ["--peers", "3", "--attack", "2@donor", "--join", "4@30", "--step-seconds", "0.4", "--rounds", "16"]
    command += ["--set", "train.eval_every=1", "--set", "sync.clock=seconds", "--set", "sync.sync_every=4"]
    done = subprocess.run(
        [sys.executable, "-m", "peer", "swarm", *command, "--home", tmp_path / "s", "--report", tmp_path / "r.json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    attack = json.loads((tmp_path / "r.json").read_text())["attack"]
    (newcomer,) = attack["newcomers"]  # peers of the run's start took no donor's state
    assert newcomer["donor"] not in attack["liars"]
    assert newcomer["loss"] is not None
    # A newcomer is some steps behind the others, on a loaded machine by up to a nat. It is far from noise.
    assert newcomer["loss"] < (newcomer["others_loss"] + UNTRAINED) / 2
    assert "state of a newcomer                  from an honest peer" in done.stdout
