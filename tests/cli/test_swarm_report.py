"""`peer swarm --report` when the report cannot be written at the end."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peer.cli import swarm
from peer.errors import OutputLost


def test_a_report_that_fails_at_the_end_costs_nobody_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Ended:
        stopped = True

        def __init__(self, *given: object) -> None: ...

        async def run(self) -> dict[str, Any]:
            return {}

    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("peer.lab.localswarm.run.Swarm", Ended)
    monkeypatch.setattr("peer.lab.localswarm.run.check", lambda result, home: None)
    monkeypatch.setattr("peer.lab.localswarm.report.table", lambda result: "the table")
    monkeypatch.setattr("peer.lab.localswarm.report.write_report", full)
    plan: Any = SimpleNamespace(churn=SimpleNamespace(faults=None), home=tmp_path)
    with pytest.raises(OutputLost, match=r"report\.json: No space left") as lost:
        swarm._run_and_report(plan, tmp_path / "report.json")
    assert "--report" in lost.value.fix
    assert "the table" in capsys.readouterr().out
