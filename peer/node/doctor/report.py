"""Formats the report of an examination, for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from peer.node.doctor.finding import DoctorFinding, Readiness, Severity, readiness
from peer.node.doctor.prediction import Prediction
from peer.observe.status.columns import counted

MARKS = {Severity.OK: "ok", Severity.WARNING: "warning", Severity.ERROR: "ERROR"}
VERDICTS = {
    Readiness.READY: "ready: peer join would work as predicted",
    Readiness.WARNINGS: "ready, with warnings",
    Readiness.NO: "not ready: peer join would fail, or never exchange",
}


def line_of(finding: DoctorFinding) -> str:
    """Return a finding as text, with its fix on a second line."""
    text = f"{MARKS[finding.severity]:<8} {finding.what:<10} {finding.measured}"
    return f"{text}\n{'':<20}fix: {finding.fix}" if finding.fix else text


def closing(findings: Sequence[DoctorFinding], prediction: Prediction, with_run: bool) -> str:
    """Return the end of the report: prediction and verdict."""
    end = readiness(findings)
    counts = {severity: sum(one.severity is severity for one in findings) for severity in Severity}
    errors, warnings = counted(counts[Severity.ERROR], "error"), counted(counts[Severity.WARNING], "warning")
    told = f"{VERDICTS[end]} ({errors}, {warnings})"
    return "\n".join(["", *([*prediction.lines(), ""] if with_run else []), told])


def in_json(findings: Sequence[DoctorFinding], prediction: Prediction) -> str:
    """Return the report as `--json` prints it."""
    report: dict[str, Any] = {
        "verdict": str(readiness(findings)),
        "findings": [one.as_json() for one in findings],
        "prediction": prediction.as_json(),
    }
    return json.dumps(report, indent=2)
