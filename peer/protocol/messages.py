"""Messages between peers, as frozen values without encoding or I/O.

`peer.transport` encodes and sends them, `peer.lab.sim` passes them in memory, and the rest of `peer.protocol` decides
on them."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import NewType

PeerId = NewType("PeerId", str)
"""libp2p peer id of an Ed25519 key: `12D3Koo…`."""

RunId = NewType("RunId", bytes)
"""SHA-256 of the manifest's exact bytes, 32 bytes."""

WIRE_VERSION = 3
"""The only wire version of this build."""

PIECE_BYTES = 16 * 2**20
"""Maximum bytes of a piece of state; see `Layout.pieces`."""

DISCARD_BYTES = 4 * 2**20
"""Maximum bytes that a caller sends to measure its upload. The receiver discards them."""
DISCARD_CHUNK = 2**15
"""Maximum bytes of one message of such a measurement."""

FRAGMENT_PREFIX = "fragment:"
"""Prefix of the snapshot name under which a member of a group fetches a fragment that it missed."""
SHARD_PREFIX = "shard:"
"""Prefix of the name under which a member fetches the contributions that an owner averaged, for an audit."""

ARTIFACT_PREFIX = "artifact:"
"""Prefix of the name under which the pieces of an artifact are fetched. Its digest in hex follows."""
DIGEST_BYTES = 32
MAX_ARTIFACTS = 256
"""Maximum artifacts that one call queries."""


def artifact_name(digest: bytes) -> str:
    """Return the name under which the pieces of an artifact are fetched."""
    return f"{ARTIFACT_PREFIX}{digest.hex()}"


def piece_sizes(nbytes: int) -> list[int]:
    """Return the sizes in bytes of the pieces of a file of `nbytes`."""
    return [min(PIECE_BYTES, nbytes - start) for start in range(0, nbytes, PIECE_BYTES)]


@dataclass(frozen=True, slots=True, order=True)
class RoundKey:
    """Identifies one due exchange of one fragment."""

    round: int
    """Number of the round, from 0."""
    fragment: int
    """Index of the fragment in the run's layout."""
    part: int = 0
    """Number of the swap, in an exchange that takes several swaps."""

    @property
    def whole(self) -> RoundKey:
        """The key of the complete exchange that this part belongs to."""
        return RoundKey(self.round, self.fragment)


MAX_PARTS = 3
"""Maximum swaps of one exchange."""


class Status(enum.StrEnum):
    """Activity of a peer, as stated in its record."""

    JOINING = "joining"
    """Has no complete state yet, so it is neither a candidate nor a donor."""
    TRAINING = "training"
    SERVING = "serving"
    """A bootstrap node: it is a donor, does not train, and is never a candidate."""
    PAUSED = "paused"
    """The operator paused the run, or the volunteer paused the peer. It answers and donates, but is no candidate."""
    FINISHED = "finished"
    """Has done all its rounds. It answers and donates until the other peers have finished."""
    ENDED = "ended"
    """A node of the operator that reports the end of the run and serves its last state. Peers believe this status only
    in records of the operator's key and of the nodes in their ticket."""
    LEAVING = "leaving"


NODES = (Status.SERVING, Status.ENDED)
"""The statuses of bootstrap nodes."""


class Reach(enum.IntEnum):
    """How other peers can call a peer. Higher is better. In a pair, the peer with the lower value dials."""

    NONE = 0
    """Not at all: the peer only dials out."""
    RELAYED = 1
    """Through a relay."""
    DIRECT = 2
    """At an address of its own."""


class PathKind(enum.StrEnum):
    """How the bytes of an exchange reach the other peer, best first."""

    DIRECT = "direct"
    MAPPED = "mapped"
    """Through a port that the called peer's router opened on request."""
    PUNCHED = "punched"
    """Over a connection that both ends opened at the same moment, through both routers."""
    RELAYED = "relayed"


@dataclass(frozen=True, slots=True)
class Way:
    """The path of one connection, and the reason why it was chosen."""

    path: PathKind = PathKind.DIRECT
    via: str = ""
    """Peer id of the relay that forwards the bytes, or that helped to punch."""
    why: str = ""
    """The reason, as a sentence."""


DIRECT = Way()


@dataclass(frozen=True, slots=True)
class RelayAttestation:
    """A relay's signed statement of the address block from which a closed peer calls
    (`peer.protocol.swarm.relay_word`)."""

    block: str
    """Address block that the relay sees, as named by `peer.protocol.endpoints.block_of_host`."""
    until: int
    """Expiry in seconds since the epoch."""
    signature: bytes
    """64 bytes."""


@dataclass(frozen=True, slots=True)
class RelayAddress:
    """A relay through which a closed peer can be called."""

    peer_id: PeerId
    endpoint: str
    """`host:port` of the relay's exchange service, with IPv6 in brackets."""
    attestation: RelayAttestation | None = None
    """None: the relay has not attested the peer's address."""


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """A peer's announcement of itself in the directory, signed by its key."""

    peer_id: PeerId
    run_id: RunId
    endpoints: tuple[str, ...]
    """`host:port` of the exchange service (IPv6 in brackets), best first, at most `MAX_ENDPOINTS`."""
    reachable: bool
    """Whether other peers can dial this peer. True until enough of them have tried and failed."""
    wire_min: int
    wire_max: int
    round: int
    """The round in which the peer is."""
    tokens_per_s: float
    status: Status
    issued_at: float
    """Seconds since the epoch. Of two records of one peer, the later issued is valid."""
    expires_at: float
    """Seconds since the epoch, at most `MAX_RECORD_TTL_S` after `issued_at`."""
    relays: tuple[RelayAddress, ...] = ()
    """Relays at which the peer has a reservation, at most `MAX_RELAYS`. A peer that others can dial has none."""
    mapped: bool = False
    """Whether others reach it through a port that its router opened."""
    start: bytes = b""
    """Nonce of 16 bytes, drawn when the process started (`peer.signed_start`). Empty: not given."""

    @property
    def reach(self) -> Reach:
        """How others can call the peer, according to its record."""
        if self.reachable and self.endpoints:
            return Reach.DIRECT
        return Reach.RELAYED if self.relays else Reach.NONE


MAX_ROUND = 2**53
"""Larger round numbers would not be exact in a double."""

LATEST = 2**40
"""Latest time, in seconds since the epoch, that a document may contain. Later times have no date in some calendars."""

MAX_SHOWN_RECORDS = 24
"""Maximum records in one answer about peers."""
MAX_RECORD_TTL_S = 900.0
"""Maximum lifetime of a record, in seconds."""
MAX_RECORD_BYTES = 2048
MAX_ENDPOINTS = 8
MAX_RELAYS = 3
START_NONCE_BYTES = 16
"""Bytes of the nonce that a process draws when it starts."""
MAX_BLOCK_CHARS = 64
"""Maximum characters of the name of an address block."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A proposal to exchange in this round, or its withdrawal.

    `withdraw`: the sender withdraws an earlier offer, for example because it is locked with another peer."""

    key: RoundKey
    withdraw: bool = False
    reach: Reach = Reach.DIRECT
    """How others can call the sender."""
    eta_s: float = 0.0
    """Latest time at which the sender's trainer stops for this round, in seconds from now, according to the sender."""
    proven: bool = False
    """Whether the sender counts the receiver among its proven peers (`peer.protocol.pair.proven`). If each counts the
    other, their pair has priority in this round."""


@dataclass(frozen=True, slots=True)
class Send:
    """An offer for the caller to send, as returned by `Matching.actions`."""

    to: PeerId
    offer: Offer


class Verdict(enum.StrEnum):
    """The answer to an offer."""

    LOCKED = "locked"
    """Both peers hold each other's offer: they are a pair for this round and fragment."""
    HELD = "held"
    """The offer is stored. The answering peer prefers another candidate and asks that one first."""
    TAKEN = "taken"
    """The answering peer is locked with another peer, or past this round."""
    LATER = "later"
    """The answering peer is not at this round yet: ask again in `eta_s` seconds."""
    REFUSED = "refused"
    """The answering peer does not pair with the sender. `reason` says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to an offer, or to the request to start a swap."""

    verdict: Verdict
    eta_s: float = 0.0
    """With LATER: seconds until asking again makes sense. With LOCKED: see `Offer.eta_s`."""
    reason: str = ""
    reach: Reach = Reach.DIRECT
    """How others can call the answering peer."""
    proven: bool = False
    """With HELD: whether the answering peer counts the sender of the offer among its proven peers."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a state with its digest: the tensors `first` to `first + count - 1` of the layout, one after
    another."""

    first: int
    count: int
    nbytes: int
    digest: bytes
    """BLAKE3, 32 bytes."""


@dataclass(frozen=True, slots=True)
class StateIndex:
    """Description of an immutable snapshot that a donor offers: `outer_params` in fp32, little endian, in layout order.
    In groups `outer_momentum` follows, divided into pieces in the same way."""

    snapshot: str
    """Name of the snapshot, for `fetch_piece`."""
    round: int
    """The round in which the donor was."""
    layout_digest: bytes
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Welcome:
    """The result of a completed Hello."""

    clock_offset_s: float
    """The other peer's run clock minus our uncorrected clock, measured at the middle of the call."""
    round_trip_s: float
    seen_as: str
    """Address (`host:port`) from which we call, as the other peer sees it."""
    voice: str = ""
    """Network of the other peer. The offsets of all peers of one network share one vote (`peer.clock.clock_filter`)."""


@dataclass(frozen=True, slots=True)
class Probed:
    """The result of a dial-back: another peer tried to dial this one."""

    tried: tuple[str, ...]
    """Endpoints that the prober dialled, at most `MAX_ENDPOINTS`. Empty: it declined, and `reason` says why."""
    answered: tuple[str, ...]
    """The endpoints in `tried` at which this peer answered with its key over TLS."""
    reason: str
    """Why the other endpoints did not answer, as a sentence."""
    asked_at: str = ""
    """Endpoint of the prober at which it received the request and proved its key. Empty: not known."""


@dataclass(frozen=True, slots=True)
class PeerTimings:
    """Timings that one side of a swap sends the other (`peer.protocol.diagnosis.analysis`). The receiver checks their
    range."""

    ready: float
    """Run time at which its work was done."""
    worked: float
    """Seconds by which its own work delayed `ready`: from the due moment of the round on, or with a clock in steps from
    the start of the round on."""
    rate_out: float = 0.0
    """Median upload rate of its latest exchanges in bytes per second. 0: not known."""
    rate_in: float = 0.0
    """Median download rate, likewise."""
    tokens: int = 0
    """Tokens of its work since its last outer step of the fragment. 0: not given."""


@dataclass(frozen=True, slots=True)
class TransferTimings:
    """Times (run time) and rates (bytes per second) of one exchange. 0: not known."""

    first_byte_at: float = 0.0
    done_at: float = 0.0
    rate_out: float = 0.0
    rate_in: float = 0.0


@dataclass(frozen=True, slots=True)
class Vouched:
    """The answer of a witness: whether it reaches a peer that does not answer us."""

    reaches: bool | None
    """None: the witness cannot say or declined, and `reason` says why."""
    reason: str
    """The reason, as a sentence."""


@dataclass(frozen=True, slots=True)
class PayloadDigests:
    """BLAKE3 digests of the two payloads of a swap, as transferred. Empty: not known."""

    received: bytes = b""
    sent: bytes = b""


@dataclass(frozen=True, slots=True)
class SwapReport:
    """The result of a swap that gave us the partner's complete, verified payload."""

    bytes_sent: int
    bytes_received: int
    seconds: float
    """Seconds from the first frame to the last."""
    sent_all: bool
    """False: the partner disappeared after it had sent its whole payload, but before it had ours. We apply the
    exchange; the partner takes a solo step."""
    partner_timings: PeerTimings | None = None
    """Timings that the partner sent, after the range check."""
    own_timings: PeerTimings | None = None
    """Timings that we sent the partner."""
    transfer_timings: TransferTimings = TransferTimings()
    digests: PayloadDigests = PayloadDigests()
    way: Way = DIRECT
    """Path of the last connection that the swap used."""


_EXPIRES_AT = attrgetter("expires_at")


def first_expiry(records: Mapping[PeerId, PeerRecord]) -> float:
    """Return the time at which the first of these records expires; infinity without records."""
    return min(map(_EXPIRES_AT, records.values()), default=math.inf)
