"""Answers what other peers ask: offers and swaps go to the matchmaker, manifest and state come from here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from peer.aio.threads import Start, at_once
from peer.codes import Code
from peer.errors import PartnerRefused
from peer.exchange.pair.matchmaker import Matchmaker
from peer.membership.pair_receipts import PairReceipts
from peer.membership.peer_exchange import PeerExchange
from peer.membership.peer_table import PeerTable
from peer.membership.statement_sync import StatementSync
from peer.outer.state import OuterState
from peer.ports.directory import Shown
from peer.ports.handler import UNWANTED, GroupHandler, SummaryDesk
from peer.protocol.messages import (
    ARTIFACT_PREFIX,
    FRAGMENT_PREFIX,
    SHARD_PREFIX,
    Answer,
    Offer,
    PeerId,
    PeerRecord,
    RoundKey,
    StateIndex,
    Verdict,
)
from peer.protocol.pair.receipt import ShownReceipt, SignedOpinion
from peer.run.manifest import SignedManifest
from peer.state.artifacts.shelf import ArtifactShelf
from peer.state.snapshot import SnapshotCache, copy_of
from peer.state.transfer.fragment import FragmentShelf


class DonatedState:
    """A complete state that is given to joiners (promise 4).

    `momentum`: in a group, outer_momentum as well. `group`: knows which state of each fragment a member has. `start`:
    where copies are made. `folder`: where they lie; None: in memory. `why_not`: why nobody should begin with this
    state, for a person; empty: they may."""

    def __init__(
        self,
        outer: OuterState,
        round_: Callable[[], int],
        now: Callable[[], float],
        *,
        momentum: bool = False,
        group: GroupHandler | None = None,
        start: Start = at_once,
        folder: Path | None = None,
        why_not: Callable[[], str] = lambda: "",
    ) -> None:
        self._why_not = why_not
        copy = partial(copy_of, outer, momentum=momentum, folder=folder)
        self._shelf = SnapshotCache(lambda: copy(round_()), now, start)

        def held(fragment: int) -> bytes:
            base = None if group is None else group.on_held(fragment)
            return b"" if base is None else base.digest

        # No part refers back to this object: a cycle would be freed by whatever task runs then, and that takes long.
        self._fragments = FragmentShelf(outer, held, start, folder)

    def on_state(self, fresh: bool, wanted: str) -> StateIndex | None:
        """As `peer.ports.handler.Handler.on_state`."""
        if why := self._why_not():
            raise PartnerRefused(Code.OUTDATED, why)
        return self._shelf.on_state(fresh, wanted)

    def making(self, snapshot: str) -> Future[Any] | None:
        """As `peer.ports.handler.Handler.making`."""
        return self._fragments.making(snapshot)

    def on_piece(self, snapshot: str, piece: int) -> memoryview | None:
        """As `peer.ports.handler.Handler.on_piece`."""
        if snapshot.startswith(FRAGMENT_PREFIX):
            return self._fragments.on_piece(snapshot, piece)
        return self._shelf.on_piece(snapshot, piece)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedParts:
    """The parts of a peer that answer others, as far as they exist."""

    manifest: SignedManifest | None = None
    view: PeerTable | None = None
    matchmaker: Matchmaker | None = None
    group: GroupHandler | None = None
    state: DonatedState | None = None
    artifacts: ArtifactShelf | None = None
    receipts: PairReceipts | None = None


class RequestHandler:
    """The `Handler` of a peer. A joiner, whose parts are missing, answers that it has nothing yet."""

    def __init__(self, parts: ServedParts | None = None) -> None:
        self.parts = parts or ServedParts()
        self.statements: StatementSync | None = None
        self.peers: PeerExchange | None = None
        self.summaries: SummaryDesk | None = None

    def hand_on(self, statements: StatementSync) -> None:
        """Give these statements to whoever asks."""
        self.statements = statements

    def tell_of(self, peers: PeerExchange) -> None:
        """Tell whoever asks of these peers."""
        self.peers = peers

    def hear(self, summaries: SummaryDesk) -> None:
        """Hand what peers say of themselves to this desk."""
        self.summaries = summaries

    def serve(self, parts: ServedParts) -> None:
        """Answer from these parts from here on."""
        self.parts = parts

    @property
    def group(self) -> GroupHandler | None:
        return self.parts.group

    def on_hello(self, record: PeerRecord) -> None:
        if self.parts.view is not None:
            self.parts.view.learn(record)

    def on_offer(self, sender: PeerId, offer: Offer) -> Answer:
        if self.parts.matchmaker is None:
            return Answer(Verdict.REFUSED, reason="this peer does not train (yet)")
        return self.parts.matchmaker.on_offer(sender, offer)

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        if self.parts.matchmaker is None:
            return Answer(Verdict.REFUSED, reason="this peer does not train (yet)")
        return self.parts.matchmaker.on_swap(sender, key)

    def on_vouch(self, about: PeerId) -> tuple[PeerRecord | None, float | None]:
        return (None, None) if self.parts.view is None else self.parts.view.vouch_for(about)

    def on_receipt(self, sender: PeerId, signed: SignedOpinion) -> SignedOpinion | None:
        return None if self.parts.receipts is None else self.parts.receipts.on_receipt(sender, signed)

    def shown_receipts(self) -> list[ShownReceipt]:
        return [] if self.parts.receipts is None else self.parts.receipts.shown()

    def on_amendments(self, held: int, head: bytes) -> list[tuple[bytes, bytes]]:
        return [] if self.statements is None else self.statements.on_amendments(held, head)

    def on_papers(self, held: Sequence[bytes]) -> list[bytes]:
        return [] if self.statements is None else self.statements.on_papers(held)

    def on_peers(self, caller: PeerId, shown: Shown) -> list[Shown]:
        return [] if self.peers is None else self.peers.on_peers(caller, shown)

    def on_summary(self, caller: PeerId, block: str, raw: bytes) -> str:
        return UNWANTED if self.summaries is None else self.summaries.on_summary(caller, block, raw)

    def on_manifest(self) -> tuple[bytes, bytes] | None:
        manifest = self.parts.manifest
        return None if manifest is None else (manifest.raw, manifest.signature)

    def on_state(self, fresh: bool = False, wanted: str = "") -> StateIndex | None:
        """None as well while the copy is being made, or an outer step moves the params: the joiner asks again in a
        moment. Raises PartnerRefused when this state is far behind the run's."""
        return None if self.parts.state is None else self.parts.state.on_state(fresh, wanted)

    def on_artifacts(self, digests: Sequence[bytes]) -> list[bool]:
        artifacts = self.parts.artifacts
        return [False] * len(digests) if artifacts is None else artifacts.on_artifacts(digests)

    def making(self, snapshot: str) -> Future[Any] | None:
        return None if self.parts.state is None else self.parts.state.making(snapshot)

    def on_piece(self, snapshot: str, piece: int) -> memoryview | None:
        if snapshot.startswith(SHARD_PREFIX):
            return None if self.parts.group is None else self.parts.group.on_shown(snapshot, piece)
        if snapshot.startswith(ARTIFACT_PREFIX):
            return None if self.parts.artifacts is None else self.parts.artifacts.on_piece(snapshot, piece)
        return None if self.parts.state is None else self.parts.state.on_piece(snapshot, piece)
