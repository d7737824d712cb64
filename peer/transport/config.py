"""Facts and bounds that client and server of a transport share."""

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
    """The terms of a run, which a joiner knows from its manifest on."""

    layout_digest: bytes = b""
    max_payload: int = 0
    """Bytes of the largest payload or piece taken."""
    codec: str = "bf16"
    max_clock_offset_s: float = 60.0
    record: Callable[[], bytes] = lambda: b""
    """Our own sealed directory record, shown to those we call."""
    ban_reason: Callable[[PeerId], str] = lambda peer: ""
    """Why the operator keeps a peer out, for a person; empty: it is not banned."""
    uninvited_reason: Callable[[PeerId, bytes], tuple[Code, str] | None] = lambda peer, shown: None
    """Why a peer that shows this invitation is not let in: a code and a sentence. None: it is."""


@dataclass(kw_only=True)
class TransportConfig:
    """The facts of the run that client and server of a transport share."""

    identity: Identity
    run_id: RunId
    now: Callable[[], float]
    wire_min: int
    wire_max: int
    invitation: bytes = b""
    """Our own. Empty: we have none."""
    terms: RunTerms = field(default_factory=RunTerms)
    starts: KeyStarts | None = None
    """The starts of our key and of others'. None: a guest, who may stand beside a daemon with the same key."""
    control: ControlMeter = field(default_factory=ControlMeter)
    """Counts all small calls, of client and server."""

    def begin_run(self, terms: RunTerms) -> None:
        """Go by these terms from here on."""
        self.terms = terms

    def narrow_wire(self, low: int, high: int) -> None:
        """Speak only these wire versions from here on; those we do not know stay unspoken."""
        self.wire_min, self.wire_max = max(low, WIRE_VERSION), min(high, WIRE_VERSION)

    def ban_reason(self, peer: PeerId) -> str:
        """Why the operator keeps a peer out, for a person; empty: it is not banned."""
        return self.terms.ban_reason(peer)
