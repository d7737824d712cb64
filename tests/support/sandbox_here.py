"""The work of the sandbox's child in the test's own process, which loads the libraries once for all tests."""

from __future__ import annotations

from typing import Any

import pytest

from peer.errors import ModelError
from peer.trainer import sandbox
from peer.trainer.sandbox_child import JOBS, outcome


def open_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do the jobs here. Deadline and memory limit are left out: tests of those start a child."""

    def ask(job: dict[str, Any], seconds: float, memory: int) -> dict[str, Any]:
        _, prepare, work = JOBS[job["job"]]
        prepare(job)
        told = outcome(work, job | {"memory": memory})
        if "refused" in told:
            raise ModelError(told["refused"], told.get("fix", ""), told.get("why", ""))
        answer: dict[str, Any] = told["answer"]
        return answer

    monkeypatch.setattr(sandbox, "_run_job", ask)
