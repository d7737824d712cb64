"""What a check found, and what all findings together come to."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from peer.errors import NotReady, PeerError, ReadyWithWarnings


class Severity(enum.StrEnum):
    """How much a finding of `peer doctor` matters.

    `ok`: nothing to do. `warning`: this machine can take part, but with a limitation. `error`: it cannot take part."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Readiness(enum.StrEnum):
    """What all findings come to."""

    READY = "ready"
    WARNINGS = "warnings"
    NO = "no"


EXIT_CODES = {
    Readiness.READY: 0,
    Readiness.WARNINGS: ReadyWithWarnings.exit_code,
    Readiness.NO: NotReady.exit_code,
}


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One thing that was looked at."""

    severity: Severity
    what: str
    """One or two words: what was looked at."""
    measured: str
    """What was measured, with its values."""
    fix: str = ""
    """What to do, with the user's own values. Empty: nothing."""

    def as_json(self) -> dict[str, Any]:
        """Return the finding as it stands in the report."""
        return {key: str(value) for key, value in asdict(self).items()}


def fine(what: str, measured: str) -> DoctorFinding:
    """Make a finding that asks for nothing."""
    return DoctorFinding(Severity.OK, what, measured)


def warning(what: str, measured: str, fix: str) -> DoctorFinding:
    """Make a finding of something that this machine does less well with."""
    return DoctorFinding(Severity.WARNING, what, measured, fix)


def failure(what: str, error: PeerError) -> DoctorFinding:
    """Make the finding of an error that `peer join` would end with."""
    return DoctorFinding(Severity.ERROR, what, error.found, error.fix)


def unchecked(what: str, why: str, fix: str = "Run peer doctor again.") -> DoctorFinding:
    """Make the finding of a check that could not be made."""
    return warning(what, f"not checked: {why}", fix)


def readiness(findings: Iterable[DoctorFinding]) -> Readiness:
    """Return what the findings come to: the worst of them decides."""
    found = {finding.severity for finding in findings}
    if Severity.ERROR in found:
        return Readiness.NO
    return Readiness.WARNINGS if Severity.WARNING in found else Readiness.READY
