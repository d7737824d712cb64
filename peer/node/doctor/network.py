"""Judges measurements of the network: reachability from outside, the clock, and the line."""

from __future__ import annotations

from dataclasses import dataclass

from peer.errors import ClockWrong, MachineTooSlow
from peer.joining.messages import check_clock
from peer.node.doctor.finding import DoctorFinding, failure, fine, unchecked, warning
from peer.observe.formatting import amount
from peer.ports.directory import DialReport
from peer.protocol.policy.fitness import Load, of_link

ENOUGH_BYTES, ENOUGH_S = 100_000, 1.0
"""Smallest measurement of a line that counts, in bytes or seconds. A smaller one measures the round trip."""
SLOW_LINE = "Use another line, or join a run with a smaller model, longer rounds, or a codec of fewer bits."
GUIDE = "docs/guides/reachability.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideLook:
    """The result of having peers of the run dial this machine."""

    reachable: bool | None
    """None: no peer could try, or too few did."""
    why: str
    port: int
    """Port of the exchange service on this machine."""
    fixed_port: bool
    """Whether the user chose the port."""
    mapped: bool = False
    """Whether the router opened a port and a peer got through it."""
    mapping: str = ""
    """Result of asking the router, for a person."""
    relays: int = 0
    """Number of relays that offer a place to this peer."""
    host: str = ""
    """Address of this machine in its local network. Empty: not known."""


def outside(look: OutsideLook) -> DoctorFinding:
    """Judge whether others can call this machine. A closed machine can take part as well."""
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
    """Compare this machine's clock with those of the run's nodes. `limit_s`: largest allowed difference in seconds."""
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
    """One direction of the line, measured with a peer of the run. `rate`: bytes per second. None: not measured, for the
    reason `why`. `cap`: the user's own limit, bytes per second."""

    direction: str
    """`upload` or `download`."""
    rate: float | None
    nbytes: int
    against: str
    why: str = ""
    cap: float | None = None

    @property
    def is_short(self) -> bool:
        """Whether the measurement was so short that the line may be faster."""
        return self.nbytes < ENOUGH_BYTES and self.nbytes < (self.rate or 0.0) * ENOUGH_S

    def sentence(self) -> str:
        """Return the measurement as a sentence."""
        assert self.rate is not None
        least = "at least " if self.is_short else ""
        own = f", within your cap of {_mbit(self.cap)}" if self.cap is not None else ""
        return f"{least}{_mbit(self.rate)}: {amount(self.nbytes, 'bytes')} with {self.against}{own}"


def line(measured: MeasuredLine, load: Load | None) -> DoctorFinding:
    """Judge one direction of the line for the rounds of the run. `load` None: the need is not known in seconds.

    Only a slow upload is an error. A slow download may be the fault of one peer, and there are others."""
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
