"""Configuration that client and server of a transport share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from peer.codes import Code
from peer.identity import Identity
from peer.observe.control_bytes import ControlMeter
from peer.protocol.messages import WIRE_VERSION, PeerId, RunId
from peer.signed_start import KeyStarts


@dataclass(frozen=True, slots=True)
class RunTerms:
    """The rules of a run for its transport. A joiner has the defaults until it knows the manifest."""

    layout_digest: bytes = b""
    """Digest of the model layout; empty: not known yet."""
    max_payload: int = 0
    """Largest payload or piece that is accepted, in bytes."""
    codec: str = "bf16"
    """Name of the codec of swapped payloads."""
    max_clock_offset_s: float = 60.0
    """Largest difference to another peer's clock that is accepted, in seconds."""
    record: Callable[[], bytes] = lambda: b""
    """Returns our own sealed directory record, which is shown to peers that we call."""
    ban_reason: Callable[[PeerId], str] = lambda peer: ""
    """Returns why the operator has banned a peer, for a person; empty: it is not banned."""
    uninvited_reason: Callable[[PeerId, bytes], tuple[Code, str] | None] = lambda peer, shown: None
    """Returns why a peer with this invitation is refused, as a code and a sentence; None: it is admitted."""


@dataclass(kw_only=True)
class TransportConfig:
    """Identity, run and clock of a transport, and the run's terms."""

    identity: Identity
    run_id: RunId
    now: Callable[[], float]
    """Returns the run's time in seconds."""
    wire_min: int
    wire_max: int
    invitation: bytes = b""
    """Our own invitation; empty: none."""
    terms: RunTerms = field(default_factory=RunTerms)
    starts: KeyStarts | None = None
    """Known starts of our own key and of others. None for a guest, which may run beside a daemon with the same key."""
    control: ControlMeter = field(default_factory=ControlMeter)
    """Counts the bytes of all small calls, of client and server."""

    def begin_run(self, terms: RunTerms) -> None:
        """Replace the terms, once the manifest is known."""
        self.terms = terms

    def narrow_wire(self, low: int, high: int) -> None:
        """Restrict the wire versions to those from `low` to `high` that this program implements."""
        self.wire_min, self.wire_max = max(low, WIRE_VERSION), min(high, WIRE_VERSION)

    def ban_reason(self, peer: PeerId) -> str:
        """Return why the operator has banned a peer, for a person; empty: it is not banned."""
        return self.terms.ban_reason(peer)
