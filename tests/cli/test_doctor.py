"""The command `peer doctor`: its first line appears early, its exit code, and stdout has only JSON with --json."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from peer.cli import doctor
from peer.errors import AddressError, NotReady
from peer.node.doctor import examine
from peer.node.doctor.finding import failure, fine

HEAVY = {"torch", "grpc", "hivemind", "numpy", "pydantic", "cryptography"}
FIRST = """
import sys
from peer.cli import doctor
def said(text, err=False):
    print(text, "|", " ".join(sorted(set(sys.modules) & set(HEAVY))))
    raise SystemExit
doctor.echo = said
doctor.command(["--home", "/nowhere/at/all"])
"""


@pytest.mark.processes
def test_the_first_line_waits_for_no_heavy_module() -> None:
    program = FIRST.replace("HEAVY", repr(sorted(HEAVY)))
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, timeout=180
    )
    assert done.stdout == "looking at this machine | \n"


async def found(self: examine.Examination) -> None:
    self.add(fine("disk", "12 GB are free"), failure("port", AddressError("port 4811 is taken", "Choose another.")))


@pytest.mark.parametrize("as_json", [True, False])
def test_the_report_and_the_exit_code_agree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, as_json: bool) -> None:
    monkeypatch.setattr(examine.Examination, "run", found)
    monkeypatch.setattr("peer.node.process.freeze_gc", lambda: None)
    done = CliRunner().invoke(doctor.command, ["--home", str(tmp_path / "home"), *["--json"] * as_json])
    assert done.exit_code == NotReady.exit_code
    if as_json:
        assert json.loads(done.stdout)["verdict"] == "no"
        assert "ERROR    port       port 4811 is taken" in done.stderr
    else:
        assert "not ready: peer join would fail, or never exchange (1 error, 0 warnings)" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_ticket_is_a_finding_beside_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(examine.Examination, "run", found)
    monkeypatch.setattr("peer.node.process.freeze_gc", lambda: None)
    done = CliRunner().invoke(doctor.command, ["peerswmistyped", "--home", str(tmp_path / "home"), "--json"])
    report = json.loads(done.stdout)
    assert [one["what"] for one in report["findings"]] == ["ticket", "disk", "port"]
