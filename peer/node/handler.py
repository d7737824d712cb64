"""Routes the calls of other peers. Each service is answered by one object, which is registered when it exists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

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
from peer.ports.handler import UNWANTED, GroupHandler, SummaryCollector
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
from peer.state.artifacts.server import ArtifactServer
from peer.state.snapshot import SnapshotCache, copy_of
from peer.state.transfer.fragment import FragmentServer

NOT_TRAINING = Answer(Verdict.REFUSED, reason="this peer does not train (yet)")


class DonatedState:
    """The complete state that this peer gives to joiners.

    `momentum`: include outer_momentum, as a group's state does. `group`: knows the held state of each fragment.
    `start`: starts the making of a copy. `folder`: where copies lie. None: in memory. `outdated_reason`: returns why no
    joiner should begin with this state, for a person. Empty: joiners may."""

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
        outdated_reason: Callable[[], str] = lambda: "",
    ) -> None:
        self._outdated_reason = outdated_reason
        copy = partial(copy_of, outer, momentum=momentum, folder=folder)
        self._snapshots = SnapshotCache(lambda: copy(round_()), now, start)

        def held(fragment: int) -> bytes:
            base = None if group is None else group.on_held(fragment)
            return b"" if base is None else base.digest

        # No part refers back to this object: the garbage collector would free such a cycle, with its large tensors, in
        # the middle of any task of the event loop.
        self._fragments = FragmentServer(outer, held, start, folder)

    def on_state(self, fresh: bool, wanted: str) -> StateIndex | None:
        """See `peer.ports.handler.Handler.on_state`. Raises PartnerRefused when the state is far behind the run's."""
        if why := self._outdated_reason():
            raise PartnerRefused(Code.OUTDATED, why)
        return self._snapshots.on_state(fresh, wanted)

    def making(self, snapshot: str) -> Future[Any] | None:
        """See `peer.ports.handler.Handler.making`."""
        return self._fragments.making(snapshot)

    def on_piece(self, snapshot: str, piece: int) -> memoryview | None:
        """See `peer.ports.handler.Handler.on_piece`."""
        if snapshot.startswith(FRAGMENT_PREFIX):
            return self._fragments.on_piece(snapshot, piece)
        return self._snapshots.on_piece(snapshot, piece)


class Services(TypedDict, total=False):
    """The objects that answer calls, one for each service. A missing or None entry means that the service is not
    offered yet."""

    manifest: SignedManifest | None
    statements: StatementSync | None
    artifacts: ArtifactServer | None
    state: DonatedState | None
    peer_table: PeerTable | None
    matchmaker: Matchmaker | None
    group: GroupHandler | None
    receipts: PairReceipts | None
    peer_exchange: PeerExchange | None
    summaries: SummaryCollector | None


class RequestHandler:
    """The `Handler` of a peer: passes each call to the object that is registered for its service.

    A joiner has few services. A call to a missing one gets the answer for "nothing here yet"."""

    def __init__(self, **services: Unpack[Services]) -> None:
        self._services = services

    def register(self, **services: Unpack[Services]) -> None:
        """Register these objects for their services. Replaces those registered before."""
        self._services.update(services)

    @property
    def group(self) -> GroupHandler | None:
        return self._services.get("group")

    def on_hello(self, record: PeerRecord) -> None:
        if (members := self._services.get("peer_table")) is not None:
            members.learn(record)

    def on_vouch(self, about: PeerId) -> tuple[PeerRecord | None, float | None]:
        return (None, None) if (members := self._services.get("peer_table")) is None else members.vouch_for(about)

    def on_offer(self, sender: PeerId, offer: Offer) -> Answer:
        return NOT_TRAINING if (pairs := self._services.get("matchmaker")) is None else pairs.on_offer(sender, offer)

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        return NOT_TRAINING if (pairs := self._services.get("matchmaker")) is None else pairs.on_swap(sender, key)

    def on_receipt(self, sender: PeerId, signed: SignedOpinion) -> SignedOpinion | None:
        return None if (receipts := self._services.get("receipts")) is None else receipts.on_receipt(sender, signed)

    def shown_receipts(self) -> list[ShownReceipt]:
        return [] if (receipts := self._services.get("receipts")) is None else receipts.shown()

    def on_amendments(self, held: int, head: bytes) -> list[tuple[bytes, bytes]]:
        return [] if (known := self._services.get("statements")) is None else known.on_amendments(held, head)

    def on_papers(self, held: Sequence[bytes]) -> list[bytes]:
        return [] if (known := self._services.get("statements")) is None else known.on_papers(held)

    def on_peers(self, caller: PeerId, shown: Shown) -> list[Shown]:
        return [] if (peers := self._services.get("peer_exchange")) is None else peers.on_peers(caller, shown)

    def on_summary(self, caller: PeerId, block: str, raw: bytes) -> str:
        desk = self._services.get("summaries")
        return UNWANTED if desk is None else desk.on_summary(caller, block, raw)

    def on_manifest(self) -> tuple[bytes, bytes] | None:
        manifest = self._services.get("manifest")
        return None if manifest is None else (manifest.raw, manifest.signature)

    def on_state(self, fresh: bool = False, wanted: str = "") -> StateIndex | None:
        """See `peer.ports.handler.Handler.on_state`. Returns None also while a copy is being made or an outer step
        changes the params: the joiner retries shortly. Raises PartnerRefused when this state is far behind the
        run's."""
        return None if (state := self._services.get("state")) is None else state.on_state(fresh, wanted)

    def on_artifacts(self, digests: Sequence[bytes]) -> list[bool]:
        artifacts = self._services.get("artifacts")
        return [False] * len(digests) if artifacts is None else artifacts.on_artifacts(digests)

    def making(self, snapshot: str) -> Future[Any] | None:
        return None if (state := self._services.get("state")) is None else state.making(snapshot)

    def on_piece(self, snapshot: str, piece: int) -> memoryview | None:
        if snapshot.startswith(SHARD_PREFIX):
            return None if (group := self._services.get("group")) is None else group.on_shown(snapshot, piece)
        kind: Literal["artifacts", "state"] = "artifacts" if snapshot.startswith(ARTIFACT_PREFIX) else "state"
        return None if (held := self._services.get(kind)) is None else held.on_piece(snapshot, piece)
