"""The findings of `peer doctor`, and the verdict that follows from all of them."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from peer.errors import NotReady, PeerError, ReadyWithWarnings


class Severity(enum.StrEnum):
    """How much a finding of `peer doctor` matters.

    `ok`: no action needed. `warning`: this machine can take part, with a limitation. `error`: it cannot take part."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Readiness(enum.StrEnum):
    """The verdict of all findings together."""

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
    """The result of one check."""

    severity: Severity
    what: str
    """The subject of the check, in one or two words."""
    measured: str
    """What was found, with its values."""
    fix: str = ""
    """What the user should do, with the user's own values. Empty: nothing."""

    def as_json(self) -> dict[str, Any]:
        """Return the finding as in the JSON report."""
        return {key: str(value) for key, value in asdict(self).items()}


def fine(what: str, measured: str) -> DoctorFinding:
    """Return a finding that needs no action."""
    return DoctorFinding(Severity.OK, what, measured)


def warning(what: str, measured: str, fix: str) -> DoctorFinding:
    """Return a finding about a limitation of this machine."""
    return DoctorFinding(Severity.WARNING, what, measured, fix)


def failure(what: str, error: PeerError) -> DoctorFinding:
    """Return the finding for an error with which `peer join` would end."""
    return DoctorFinding(Severity.ERROR, what, error.found, error.fix)


def unchecked(what: str, why: str, fix: str = "Run peer doctor again.") -> DoctorFinding:
    """Return the finding for a check that could not be made."""
    return warning(what, f"not checked: {why}", fix)


def readiness(findings: Iterable[DoctorFinding]) -> Readiness:
    """Return the verdict, which the worst finding decides."""
    found = {finding.severity for finding in findings}
    if Severity.ERROR in found:
        return Readiness.NO
    return Readiness.WARNINGS if Severity.WARNING in found else Readiness.READY
