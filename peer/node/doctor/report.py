"""The report of an examination, for a person and for a program."""

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
    """Write a finding, and its fix on a line of its own."""
    text = f"{MARKS[finding.severity]:<8} {finding.what:<10} {finding.measured}"
    return f"{text}\n{'':<20}fix: {finding.fix}" if finding.fix else text


def closing(findings: Sequence[DoctorFinding], prediction: Prediction, with_run: bool) -> str:
    """Write the end of the report: the prediction, and what all comes to."""
    end = readiness(findings)
    counts = {severity: sum(one.severity is severity for one in findings) for severity in Severity}
    errors, warnings = counted(counts[Severity.ERROR], "error"), counted(counts[Severity.WARNING], "warning")
    told = f"{VERDICTS[end]} ({errors}, {warnings})"
    return "\n".join(["", *([*prediction.lines(), ""] if with_run else []), told])


def in_json(findings: Sequence[DoctorFinding], prediction: Prediction) -> str:
    """Write the report as `--json` prints it."""
    report: dict[str, Any] = {
        "verdict": str(readiness(findings)),
        "findings": [one.as_json() for one in findings],
        "prediction": prediction.as_json(),
    }
    return json.dumps(report, indent=2)
