"""What the exchange asks of its owner when others call."""

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
    """What others ask of a member of a group."""

    async def on_join(self, sender: PeerId, join: Join) -> JoinReply:
        """Lead this round, or say who does. Returns within `join.wait_s`, about."""

    async def on_contribution(self, sender: PeerId, opening: ContributionHeader) -> UploadSlot:
        """A place for a contribution to a shard of ours. Raises PartnerRefused."""

    def on_held(self, fragment: int) -> Base | None:
        """Which state of the fragment we have; None without a complete one (promise 4)."""

    def on_shown(self, name: str, piece: int) -> memoryview | None:
        """A piece of what we averaged in our last round; None: not, or no longer, shown. The name tells that the caller
        knows the roster."""


UNWANTED = "unwanted"
"""The answer to a summary where nobody looks at summaries."""


class SummaryCollector(Protocol):
    """Takes what peers say of themselves, on a node of the run."""

    def on_summary(self, caller: PeerId, block: str, raw: bytes) -> str:
        """Take a signed summary of a caller from this address block. Return why it was dropped, one of
        `peer.protocol.summary.book.DROPS`; empty: it was taken."""


class Handler(Protocol):
    """Synchronous: answers come from state at hand."""

    @property
    def group(self) -> GroupHandler | None:
        """None: this peer is in no group (yet)."""

    def on_hello(self, record: PeerRecord) -> None:
        """A caller proved its key and showed its record."""

    def on_offer(self, sender: PeerId, offer: Offer) -> Answer: ...

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        """Whether a swap stream from `sender` is welcome: LOCKED (go on), LATER, TAKEN or REFUSED."""

    def on_vouch(self, about: PeerId) -> tuple[PeerRecord | None, float | None]:
        """What we know of another peer: its record, if it has one that others may dial; seconds since it was heard
        from, None: never, or long ago."""

    def on_receipt(self, sender: PeerId, signed: SignedOpinion) -> SignedOpinion | None:
        """Take the signature of a partner for ours. None: we have not decided yet, or know no such swap."""

    def shown_receipts(self) -> list[ShownReceipt]:
        """Return receipts that others signed for us, at most `MAX_SHOWN`."""

    def on_amendments(self, held: int, head: bytes) -> list[tuple[bytes, bytes]]:
        """(raw, signature) of the amendments behind the `held` first, the last of which has digest `head`."""

    def on_papers(self, held: Sequence[bytes]) -> list[bytes]:
        """The papers of the run, as lines, that one lacks who holds those with these digests."""

    def on_peers(self, caller: PeerId, shown: Shown) -> list[Shown]:
        """Records of peers that we know of, our own among them. `shown`: the caller's own, empty when it has none."""

    def on_summary(self, caller: PeerId, block: str, raw: bytes) -> str:
        """As `SummaryCollector.on_summary`. `UNWANTED`: this peer takes none."""

    def on_manifest(self) -> tuple[bytes, bytes] | None:
        """(exact manifest bytes, signature), None if we have none yet."""

    def on_state(self, fresh: bool = False, wanted: str = "") -> StateIndex | None:
        """Describe an immutable snapshot to donate; None without a complete state (promise 4), or not yet. `fresh`:
        a new one, if the state has moved on since the last. `wanted`: this one, if it is still kept. Raises
        PartnerRefused with what speaks against it."""

    def making(self, snapshot: str) -> Future[Any] | None:
        """Begin the copy that a named fragment is given from; the work under way, None when there is none to wait
        for."""

    def on_piece(self, snapshot: str, piece: int) -> memoryview | None:
        """Return a piece of a snapshot described before, or of an artifact (`artifact_name`); None when it is gone."""

    def on_artifacts(self, digests: Sequence[bytes]) -> list[bool]:
        """Tell which of these artifacts are given here; one answer each, in that order."""
