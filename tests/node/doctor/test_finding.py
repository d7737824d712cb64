"""The verdict that follows from all findings, and its format."""

from __future__ import annotations

import json

import pytest

from peer.errors import AddressError, NotReady, ReadyWithWarnings
from peer.node.doctor.finding import (
    EXIT_CODES,
    DoctorFinding,
    Readiness,
    Severity,
    failure,
    fine,
    readiness,
    unchecked,
    warning,
)
from peer.node.doctor.prediction import Prediction
from peer.node.doctor.report import closing, in_json, line_of

GOOD, POOR = fine("disk", "12 GB"), warning("kernels", "none", "Install a compiler.")
BAD = failure("port", AddressError("port 4811 is taken", "Choose another --port."))


@pytest.mark.parametrize(
    ("findings", "end", "code"),
    [
        ([], Readiness.READY, 0),
        ([GOOD], Readiness.READY, 0),
        ([GOOD, POOR], Readiness.WARNINGS, ReadyWithWarnings.exit_code),
        ([GOOD, unchecked("clock", "nobody answered")], Readiness.WARNINGS, ReadyWithWarnings.exit_code),
        ([BAD, POOR, GOOD], Readiness.NO, NotReady.exit_code),
    ],
)
def test_the_worst_finding_decides(findings: list[DoctorFinding], end: Readiness, code: int) -> None:
    assert readiness(findings) is end
    assert EXIT_CODES[end] == code


def test_an_error_keeps_its_own_fix() -> None:
    assert DoctorFinding(Severity.ERROR, "port", "port 4811 is taken", "Choose another --port.") == BAD


def test_the_json_has_the_documented_form() -> None:
    report = json.loads(in_json([GOOD, BAD], Prediction(device="cpu", micro_batch=8)))
    assert list(report) == ["verdict", "findings", "prediction"]
    assert report["verdict"] == "no"
    assert report["findings"][1] == {
        "severity": "error",
        "what": "port",
        "measured": "port 4811 is taken",
        "fix": "Choose another --port.",
    }
    assert report["prediction"]["micro_batch"] == 8
    assert report["prediction"]["tokens_per_day"] is None


def test_a_person_reads_the_fix_below_what_was_measured() -> None:
    assert line_of(BAD).splitlines() == [
        "ERROR    port       port 4811 is taken",
        "                    fix: Choose another --port.",
    ]
    assert line_of(GOOD) == "ok       disk       12 GB"


def test_the_end_counts_what_is_wrong() -> None:
    told = closing([GOOD, POOR, BAD], Prediction(), with_run=False)
    assert told.endswith("not ready: peer join would fail, or never exchange (1 error, 1 warning)")
    assert "tokens a day" not in told
    assert "tokens a day    not known" in closing([GOOD], Prediction(), with_run=True)
