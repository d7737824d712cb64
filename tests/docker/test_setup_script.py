"""The one-shot service's script, run as a process: again and again, cut short, and edited under its hands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from peer.identity import load_or_create
from peer.run.manifest import load_signed
from peer.run.ticket import Ticket

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).resolve().parents[2] / "docker" / "setup.sh"
ADDRESS = "/dns4/bootstrap/tcp/4810"


class Setup:
    def __init__(self, folder: Path) -> None:
        self.run = folder / "run"
        self.home = folder / "home"
        self.run.mkdir()
        tools = folder / "tools"
        tools.mkdir()
        program = tools / "peer"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m peer "$@"\n')
        program.chmod(0o755)
        self._environment = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(SCRIPT.parents[1]),
            "PEER_HOME": str(self.home),
            "PEER_RUN_DIR": str(self.run),
        }

    def __call__(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", str(SCRIPT)],
            env={**self._environment, "PEER_BOOTSTRAP_ADDRESS": ADDRESS, **environment},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.run.iterdir()}


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def test_it_makes_what_the_swarm_needs_and_keeps_it_when_run_again(setup: Setup) -> None:
    first = setup(PEER_RUN_SETTINGS="name=mine sync_every=20")
    assert first.returncode == 0, first.stderr
    made = setup.files()
    assert sorted(made) == ["run.toml", "run.toml.sig", "ticket"]
    signed = load_signed(setup.run / "run.toml")
    assert (signed.manifest.name, signed.manifest.sync.sync_every) == ("mine", 20)
    key = load_or_create(setup.home / "identity.key")
    assert Ticket.named(f"@{setup.run}/ticket") == Ticket(signed.run_id, (f"{ADDRESS}/p2p/{key.peer_id}",))
    assert setup(PEER_RUN_SETTINGS="name=other").returncode == 0
    assert setup.files() == made


@pytest.mark.nightly
def test_an_attempt_that_was_cut_short_is_mended(setup: Setup) -> None:
    (setup.run / "run.toml").touch()
    assert setup().returncode == 0
    kept = setup.files()
    (setup.run / "run.toml.sig").unlink()
    (setup.run / "ticket").unlink()
    assert setup().returncode == 0
    assert setup.files() == kept


@pytest.mark.nightly
def test_an_edit_under_the_signature_is_refused(setup: Setup) -> None:
    assert setup().returncode == 0
    ticket = setup.files()["ticket"]
    manifest = setup.run / "run.toml"
    manifest.write_text(manifest.read_text().replace("seed = 0", "seed = 1"))
    refused = setup()
    assert refused.returncode == 20
    assert "changed after it was signed" in refused.stderr
    assert setup.files()["ticket"] == ticket


@pytest.mark.nightly
def test_it_says_what_is_missing(setup: Setup) -> None:
    result = setup(PEER_BOOTSTRAP_ADDRESS="")
    assert result.returncode == 2
    assert "where the peers reach the bootstrap node" in result.stderr
    assert setup.files() == {}
    wrong = setup(PEER_BOOTSTRAP_ADDRESS="/dns4/boot strap/tcp/1")
    assert wrong.returncode == 21
    assert "ticket" not in setup.files()
