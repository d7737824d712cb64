"""What was measured of the network, judged: the way from outside, the clock, and the line."""

from __future__ import annotations

from dataclasses import dataclass

from peer.errors import ClockWrong, MachineTooSlow
from peer.joining.messages import check_clock
from peer.node.doctor.finding import DoctorFinding, failure, fine, unchecked, warning
from peer.observe.formatting import amount
from peer.ports.directory import DialReport
from peer.protocol.policy.fitness import Load, of_link

ENOUGH_BYTES, ENOUGH_S = 100_000, 1.0
"""A measurement of fewer bytes and less time is one of the round trip, and says little of a line."""
SLOW_LINE = "Use another line, or join a run with a smaller model, longer rounds, or a codec of fewer bits."
GUIDE = "docs/guides/reachability.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideLook:
    """What peers of the run found that tried to dial this machine."""

    reachable: bool | None
    """None: nobody could try, or too few did."""
    why: str
    port: int
    """Of the exchange service, here."""
    fixed_port: bool
    """Whether the user chose it."""
    mapped: bool = False
    """The router opened a port for us, and a peer got through it."""
    mapping: str = ""
    """What asking the router came to."""
    relays: int = 0
    """Relays that would hold a place for this peer."""
    host: str = ""
    """Address of this machine in its own network; empty: not known."""


def outside(look: OutsideLook) -> DoctorFinding:
    """Judge whether others can call this machine. A closed one takes part, too."""
    if look.reachable:
        through = ", through a port that the router opened" if look.mapped else ""
        return fine("reachable", f"yes{through}: {look.why}")
    port = look.port if look.fixed_port else 4811
    host = look.host or "this machine"
    fix = f"On your router forward TCP port {port} to {host}, then give --port {port}; see {GUIDE}."
    if look.reachable is None:
        return unchecked("reachable", look.why, "Run peer doctor again when other peers are up.")
    way = f"{look.relays} relays of the run would take calls for it" if look.relays else "no relay of the run has room"
    asked = f"; router: {look.mapping}" if look.mapping else ""
    return warning("reachable", f"no: {look.why}; {way}{asked}", fix)


def clock(contact: DialReport, limit_s: float) -> DoctorFinding:
    """Compare this machine's clock with those of the run's nodes."""
    if contact.clock_offset_s is None:
        return unchecked("clock", "no node of the run answered")
    try:
        check_clock(contact, limit_s)
    except ClockWrong as error:
        return failure("clock", error)
    off = contact.clock_offset_s
    side = "behind" if off > 0 else "ahead of"
    return fine("clock", f"{abs(off):.2f} s {side} the run's nodes; at most {limit_s:.0f} s are taken")


@dataclass(frozen=True, slots=True)
class MeasuredLine:
    """One direction of the line, measured against a peer of the run. `rate`: bytes per second; None: not measured, and
    `why` says so. `cap`: the user's own, bytes per second."""

    direction: str
    """`upload` or `download`."""
    rate: float | None
    nbytes: int
    against: str
    why: str = ""
    cap: float | None = None

    @property
    def is_short(self) -> bool:
        """Whether the line may be faster than this."""
        return self.nbytes < ENOUGH_BYTES and self.nbytes < (self.rate or 0.0) * ENOUGH_S

    def sentence(self) -> str:
        """Say what was measured."""
        assert self.rate is not None
        least = "at least " if self.is_short else ""
        own = f", within your cap of {_mbit(self.cap)}" if self.cap is not None else ""
        return f"{least}{_mbit(self.rate)}: {amount(self.nbytes, 'bytes')} with {self.against}{own}"


def line(measured: MeasuredLine, load: Load | None) -> DoctorFinding:
    """Judge a direction of the line for the rounds of the run. `load` None: what they need is not known in seconds.

    Only a slow upload ends in an error: a peer may be slow to give, and there are others."""
    name = measured.direction
    if measured.rate is None:
        return unchecked(name, measured.why, "Run peer doctor again: another peer may be free then.")
    found = (
        None
        if load is None or measured.is_short
        else of_link(load, measured.rate, f"{name}, as measured with {measured.against}")
    )
    if found is None:
        return fine(name, measured.sentence())
    fix = SLOW_LINE if measured.cap is None else found.fix
    if found.never and name == "upload":
        return failure(name, MachineTooSlow(found.found, fix))
    return warning(name, found.found, fix)


def caps(load: Load | None, max_upload: float | None, max_download: float | None) -> list[DoctorFinding]:
    """Judge the user's own caps, as `peer join` does."""
    found = list[DoctorFinding]()
    for flag, cap, name in (("--max-upload", max_upload, "upload"), ("--max-download", max_download, "download")):
        judged = None if load is None or cap is None else of_link(load, cap, f"{name}, its cap ({flag})")
        if judged is None:
            continue
        error = MachineTooSlow(judged.found, judged.fix)
        found.append(failure("caps", error) if judged.never else warning("caps", judged.found, judged.fix))
    return found


def _mbit(rate: float) -> str:
    return f"{8 * rate / 1e6:.1f} Mbit/s"
