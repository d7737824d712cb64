"""Interfaces of the handlers that serve the calls of other peers.

`peer.transport` receives the calls and calls these methods. They are answered from state in memory."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from peer.ports.directory import Shown
from peer.protocol.group.quorum import Base
from peer.protocol.group.roster import Join, JoinReply
from peer.protocol.group.shards import ContributionHeader, UploadSlot
from peer.protocol.messages import Answer, Offer, PeerId, PeerRecord, RoundKey, StateIndex
from peer.protocol.pair.receipt import ShownReceipt, SignedOpinion


class GroupHandler(Protocol):
    """Serves the calls of the other members of a group."""

    async def on_join(self, sender: PeerId, join: Join) -> JoinReply:
        """Answer a join: lead the round, or name the reason why not. Returns after about `join.wait_s` seconds at the
        latest."""

    async def on_contribution(self, sender: PeerId, opening: ContributionHeader) -> UploadSlot:
        """Return a slot for a contribution to a shard that we own. Raises PartnerRefused."""

    def on_held(self, fragment: int) -> Base | None:
        """Return the base of our state of the fragment. None: we have no complete state."""

    def on_shown(self, name: str, piece: int) -> memoryview | None:
        """Return a piece of the contributions that we averaged in our last round, for an audit. None: it is not
        available. Only a caller that knows the roster can compute `name`."""


UNWANTED = "unwanted"
"""Answer of a peer that collects no summaries."""


class SummaryCollector(Protocol):
    """Collects the signed summaries of peers, on a node of the operator."""

    def on_summary(self, caller: PeerId, block: str, raw: bytes) -> str:
        """Add a signed summary that a caller sent from this address block. Return why it was dropped, one of
        `peer.protocol.summary.book.DROPS`; empty: it was added."""


class Handler(Protocol):
    """Serves the calls of other peers, other than those of a group. All methods are synchronous: they answer from state
    in memory."""

    @property
    def group(self) -> GroupHandler | None:
        """Handler of group calls. None: this peer is in no group (yet)."""

    def on_hello(self, record: PeerRecord) -> None:
        """Process the record of a caller that proved its key."""

    def on_offer(self, sender: PeerId, offer: Offer) -> Answer: ...

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        """Answer whether `sender` may start a swap stream: LOCKED (continue), LATER, TAKEN or REFUSED."""

    def on_vouch(self, about: PeerId) -> tuple[PeerRecord | None, float | None]:
        """Return our record of the peer `about` (None: unknown), and the seconds since its last contact with us (None:
        no contact, or long ago)."""

    def on_receipt(self, sender: PeerId, signed: SignedOpinion) -> SignedOpinion | None:
        """Record a partner's signature of a swap and return ours. None: we have not decided yet whether to accept the
        swap, or know no such swap."""

    def shown_receipts(self) -> list[ShownReceipt]:
        """Return receipts that other peers signed for us, at most `MAX_SHOWN`."""

    def on_amendments(self, held: int, head: bytes) -> list[tuple[bytes, bytes]]:
        """Return (raw, signature) of the amendments after the first `held`. `head`: digest of the last amendment that
        the caller has."""

    def on_papers(self, held: Sequence[bytes]) -> list[bytes]:
        """Return the papers of the run, as lines, without those whose digests are in `held`."""

    def on_peers(self, caller: PeerId, shown: Shown) -> list[Shown]:
        """Return records of peers that we know, our own among them. `shown`: the caller's own record; empty: it has
        none."""

    def on_summary(self, caller: PeerId, block: str, raw: bytes) -> str:
        """See `SummaryCollector.on_summary`. Returns `UNWANTED` if this peer collects no summaries."""

    def on_manifest(self) -> tuple[bytes, bytes] | None:
        """Return the exact manifest bytes and their signature. None: we have no manifest yet."""

    def on_state(self, fresh: bool = False, wanted: str = "") -> StateIndex | None:
        """Return the description of an immutable snapshot of our state. None: we have no complete state yet. Raises
        PartnerRefused when the state must not be given.

        `fresh`: make a new snapshot if the state has changed since the last one. `wanted`: name of the snapshot to
        describe, if it is still available."""

    def making(self, snapshot: str) -> Future[Any] | None:
        """Start to copy the state that this snapshot name stands for. Return the running copy; None: there is nothing
        to wait for."""

    def on_piece(self, snapshot: str, piece: int) -> memoryview | None:
        """Return a piece of a snapshot or of an artifact (`artifact_name`). None: it is no longer available."""

    def on_artifacts(self, digests: Sequence[bytes]) -> list[bool]:
        """Return for each of these digests whether we serve that artifact, in the same order."""
