"""Messages between peers, as frozen values without bytes or I/O. `peer.transport` puts them on a wire, `peer.lab.sim`
hands them over in memory, `peer.protocol` decides on them."""

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
"""The one wire version this build speaks."""

PIECE_BYTES = 16 * 2**20
"""Most bytes of a piece of state; see `Layout.pieces`."""

DISCARD_BYTES = 4 * 2**20
"""Most bytes by which a caller measures its upload."""
DISCARD_CHUNK = 2**15
"""Most bytes of one message of them."""

FRAGMENT_PREFIX = "fragment:"
SHARD_PREFIX = "shard:"
"""Start of the name under which a group's member fetches a fragment that it missed: a part of training's exchanges."""

ARTIFACT_PREFIX = "artifact:"
"""Start of the name under which the pieces of an artifact are fetched; its digest follows."""
DIGEST_BYTES = 32
MAX_ARTIFACTS = 256
"""Most artifacts that one call asks about."""


def artifact_name(digest: bytes) -> str:
    """Return the name under which the pieces of an artifact are fetched."""
    return f"{ARTIFACT_PREFIX}{digest.hex()}"


def piece_sizes(nbytes: int) -> list[int]:
    """Return the bytes of each piece of a file of `nbytes`."""
    return [min(PIECE_BYTES, nbytes - start) for start in range(0, nbytes, PIECE_BYTES)]


@dataclass(frozen=True, slots=True, order=True)
class RoundKey:
    """One due exchange of one fragment."""

    round: int
    """Counted from 0 by the round clock."""
    fragment: int
    """Index into the run's fragment layout."""
    part: int = 0
    """The number of the swap, in an exchange that takes several."""

    @property
    def whole(self) -> RoundKey:
        """The exchange that this is a part of."""
        return RoundKey(self.round, self.fragment)


MAX_PARTS = 3
"""Most swaps of one exchange."""


class Status(enum.StrEnum):
    """The activity of a peer, as its record tells it."""

    JOINING = "joining"
    """Has no complete state yet: never a candidate, never a donor."""
    TRAINING = "training"
    SERVING = "serving"
    """A bootstrap node: a donor that does not train and is never a candidate."""
    PAUSED = "paused"
    """The operator paused the run, or the volunteer the peer. It answers and donates, but is no candidate."""
    FINISHED = "finished"
    """It did all its rounds. It answers and donates until the other peers are done."""
    ENDED = "ended"
    """A node of the operator says that the run is over, and serves its last state. Others believe the operator's key
    and the nodes that their ticket names."""
    LEAVING = "leaving"


NODES = (Status.SERVING, Status.ENDED)
"""The statuses of a bootstrap node."""


class Reach(enum.IntEnum):
    """How others can call a peer, the better the higher. Of a pair, the one that is harder to call dials."""

    NONE = 0
    """Not at all: it only dials out."""
    RELAYED = 1
    """By way of a relay."""
    DIRECT = 2
    """At an address of its own."""


class PathKind(enum.StrEnum):
    """The way that the bytes of an exchange take, the best first."""

    DIRECT = "direct"
    MAPPED = "mapped"
    """Through a port that the called peer's router opened when it was asked."""
    PUNCHED = "punched"
    """Over a connection that both ends opened at the same moment, through the routers of both."""
    RELAYED = "relayed"


@dataclass(frozen=True, slots=True)
class Way:
    """The path of one connection, and why it is that one."""

    path: PathKind = PathKind.DIRECT
    via: str = ""
    """Peer id of the relay that passes the bytes, or that helped to punch."""
    why: str = ""
    """The reason as a sentence."""


DIRECT = Way()


@dataclass(frozen=True, slots=True)
class RelayAttestation:
    """A relay's signed word on where a closed peer calls from (`peer.protocol.swarm.relay_word`)."""

    block: str
    """The address block that the relay sees, as `peer.protocol.endpoints.block_of_host` names it."""
    until: int
    """Seconds since the epoch until which it counts."""
    signature: bytes
    """64 bytes."""


@dataclass(frozen=True, slots=True)
class RelayAddress:
    """A relay at which a closed peer can be called."""

    peer_id: PeerId
    endpoint: str
    """`host:port`, IPv6 in brackets, of the relay's exchange service."""
    word: RelayAttestation | None = None
    """None: the relay said nothing of the peer's address."""


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """A peer's announcement of itself in the directory, signed by its key."""

    peer_id: PeerId
    run_id: RunId
    endpoints: tuple[str, ...]
    """`host:port` (IPv6 in brackets) of the exchange service, best first, at most 8."""
    reachable: bool
    """Whether others can dial it, as far as others have tried. True until somebody has."""
    wire_min: int
    wire_max: int
    round: int
    """The round it works in."""
    tokens_per_s: float
    status: Status
    issued_at: float
    """Seconds since the epoch. The later issued of two records of one peer wins."""
    expires_at: float
    """Seconds since the epoch, at most `MAX_RECORD_TTL_S` after `issued_at`."""
    relays: tuple[RelayAddress, ...] = ()
    """The relays that hold a reservation for it, at most `MAX_RELAYS`. A peer that others can dial has none."""
    mapped: bool = False
    """Whether others reach it through a port that its router opened."""
    start: bytes = b""
    """Nonce of the start of its process, 16 bytes (`peer.signed_start`). Empty: it names none."""

    @property
    def reach(self) -> Reach:
        """How others can call it, as it says."""
        if self.reachable and self.endpoints:
            return Reach.DIRECT
        return Reach.RELAYED if self.relays else Reach.NONE


MAX_ROUND = 2**53
"""Beyond it a round is no longer exact in every number it meets."""

LATEST = 2**40
"""The last second since the epoch that a document may name. Later ones have no date in every calendar."""

MAX_SHOWN_RECORDS = 24
"""Records in one answer about peers."""
MAX_RECORD_TTL_S = 900.0
"""Seconds that a record lives at most."""
MAX_RECORD_BYTES = 2048
MAX_ENDPOINTS = 8
MAX_RELAYS = 3
START_NONCE_BYTES = 16
"""Bytes of the nonce that a process draws when it starts."""
MAX_BLOCK_CHARS = 64
"""Most characters of an address block's name."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A proposal to exchange in this round, or its withdrawal.

    `withdraw`: takes an earlier offer back, for example because the sender is locked with another peer."""

    key: RoundKey
    withdraw: bool = False
    reach: Reach = Reach.DIRECT
    """How others can call the sender."""
    eta_s: float = 0.0
    """Seconds until the sender's trainer has stopped for this round, at the latest, as it says."""
    proven: bool = False
    """Whether the receiver is proven to the sender, so that their edge outweighs others in this round."""


@dataclass(frozen=True, slots=True)
class Send:
    """An action of the matching: send this offer to this peer."""

    to: PeerId
    offer: Offer


class Verdict(enum.StrEnum):
    """The answer to an offer."""

    LOCKED = "locked"
    """Each holds the other: the pair is made for this round and fragment."""
    HELD = "held"
    """Noted: a better candidate is asked first."""
    TAKEN = "taken"
    """Locked with another peer, or past this round."""
    LATER = "later"
    """Behind: the caller asks again in `eta_s`."""
    REFUSED = "refused"
    """Will not pair at all, `reason` says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    verdict: Verdict
    eta_s: float = 0.0
    """With LATER: seconds until asking again makes sense. With LOCKED: as that of an offer."""
    reason: str = ""
    reach: Reach = Reach.DIRECT
    """How others can call the answering side, as it says."""
    proven: bool = False
    """With HELD: as that of an offer."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A digest-checked part of a state: of the tensors `first .. first+count-1` of the layout, one after another."""

    first: int
    count: int
    nbytes: int
    digest: bytes
    """BLAKE3, 32 bytes."""


@dataclass(frozen=True, slots=True)
class StateIndex:
    """An immutable snapshot that a donor offers: `outer_params` in fp32, little endian, in layout order. In groups
    `outer_momentum` follows, cut in the same way."""

    snapshot: str
    """Names the snapshot for `fetch_piece`."""
    round: int
    """The round its donor worked in."""
    layout_digest: bytes
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to a completed Hello."""

    clock_offset_s: float
    """The other's run clock minus our raw clock, halfway through the call."""
    round_trip_s: float
    seen_as: str
    """The address the other saw us call from, `host:port`."""
    voice: str = ""
    """The network that the other speaks for when it tells the time (`peer.clock.clock_filter`)."""


@dataclass(frozen=True, slots=True)
class Probed:
    """The result of a dial-back: another peer dialled this one."""

    tried: tuple[str, ...]
    """Endpoints that the prober dialled, at most `MAX_ENDPOINTS`. Empty: it declined, `reason` says why."""
    answered: tuple[str, ...]
    """The endpoints among them that reached this peer: our key, over TLS."""
    reason: str
    """Why the endpoints did not answer, as a sentence."""
    asked_at: str = ""
    """The endpoint at which the prober took the question, with its key. Empty: not known."""


@dataclass(frozen=True, slots=True)
class PeerTimings:
    """Timings that one side of a swap tells the other (`peer.protocol.diagnosis.analysis`). Their range is checked."""

    ready: float
    """When its work was done, run time."""
    worked: float
    """Seconds in which it was not ready by its own doing. They count from the due moment of the round, with a clock in
    steps from the beginning of the round."""
    rate_out: float = 0.0
    """Median rates of its last exchanges, bytes per second. 0: not known."""
    rate_in: float = 0.0
    tokens: int = 0
    """Of its work since its last outer step of the fragment. 0: not told."""


@dataclass(frozen=True, slots=True)
class TransferTimings:
    """The times of an exchange on our clock (run time), and its bytes per second. 0: not known."""

    first_byte_at: float = 0.0
    done_at: float = 0.0
    rate_out: float = 0.0
    rate_in: float = 0.0


@dataclass(frozen=True, slots=True)
class Vouched:
    """A witness's answer about a peer that does not answer us."""

    reaches: bool | None
    """None: the witness cannot say, or declined, `reason` says why."""
    reason: str
    """The reason as a sentence."""


@dataclass(frozen=True, slots=True)
class PayloadDigests:
    """BLAKE3 of the payloads of a swap, as they travelled. Empty: not known."""

    received: bytes = b""
    sent: bytes = b""


@dataclass(frozen=True, slots=True)
class SwapReport:
    """The report of one swap that gave us the partner's complete verified payload."""

    bytes_sent: int
    bytes_received: int
    seconds: float
    """From the first frame to the last."""
    sent_all: bool
    """False: the partner vanished after we had everything. It will do a solo step, we mix."""
    partner_timings: PeerTimings | None = None
    """Timings that the partner told, checked for range."""
    own_timings: PeerTimings | None = None
    """Timings that we told the partner."""
    transfer_timings: TransferTimings = TransferTimings()
    digests: PayloadDigests = PayloadDigests()
    way: Way = DIRECT
    """The path of the last connection that the swap used."""


_EXPIRES_AT = attrgetter("expires_at")


def first_expiry(records: Mapping[PeerId, PeerRecord]) -> float:
    """Until when all of them are live."""
    return min(map(_EXPIRES_AT, records.values()), default=math.inf)
