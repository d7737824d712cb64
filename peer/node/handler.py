"""What a daemon answers when others call: offers and swaps go to the coordinator, manifest and state come from here."""

from __future__ import annotations

from collections.abc import Callable

from peer.errors import PartnerRefused
from peer.exchange.pair.matchmaker import Matchmaker
from peer.membership.amendment_sync import AmendmentSync
from peer.outer.state import OuterState
from peer.ports.handler import GroupHandler
from peer.protocol.messages import FRAGMENT_PREFIX, Answer, Offer, PeerId, PeerRecord, RoundKey, StateIndex, Verdict
from peer.run.manifest import SignedManifest
from peer.state.snapshot import SnapshotCache, Start, at_once, copy_of
from peer.state.transfer.fragment import FragmentShelf


class RequestHandler:
    """The `Handler` of a daemon. Everything in it may still be missing: a joiner answers that it has nothing yet."""

    def __init__(self, learn: Callable[[PeerRecord], None] = lambda record: None) -> None:
        self.manifest: SignedManifest | None = None
        self.matchmaker: Matchmaker | None = None
        self.amendments: AmendmentSync | None = None
        self.group: GroupHandler | None = None
        self._fragments: FragmentShelf | None = None
        self.learn = learn
        self.vouch_for: Callable[[PeerId], tuple[PeerRecord | None, float | None]] = lambda about: (None, None)
        self._shelf: SnapshotCache | None = None
        self._why_not: Callable[[], str] = lambda: ""

    def give(
        self,
        outer: OuterState,
        round_: Callable[[], int],
        now: Callable[[], float],
        *,
        momentum: bool = False,
        start: Start = at_once,
        why_not: Callable[[], str] = lambda: "",
    ) -> None:
        """The state is complete from here on: donate it (promise 4). `momentum`: in a group, outer_momentum as well.
        `start`: where copies are made. `why_not`: why nobody should begin with this state, for a person; empty: they
        may."""
        self._why_not = why_not
        self._shelf = SnapshotCache(lambda: copy_of(outer, round_(), momentum=momentum), now, start)
        self._fragments = FragmentShelf(outer, self._held)

    def _held(self, fragment: int) -> bytes:
        base = None if self.group is None else self.group.on_held(fragment)
        return b"" if base is None else base.digest

    def on_hello(self, record: PeerRecord) -> None:
        self.learn(record)

    def on_offer(self, sender: PeerId, offer: Offer) -> Answer:
        if self.matchmaker is None:
            return Answer(Verdict.REFUSED, reason="this peer does not train (yet)")
        return self.matchmaker.on_offer(sender, offer)

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        if self.matchmaker is None:
            return Answer(Verdict.REFUSED, reason="this peer does not train (yet)")
        return self.matchmaker.on_swap(sender, key)

    def on_vouch(self, about: PeerId) -> tuple[PeerRecord | None, float | None]:
        return self.vouch_for(about)

    def on_amendments(self, held: int, head: bytes) -> list[tuple[bytes, bytes]]:
        return [] if self.amendments is None else self.amendments.since(held, head)

    def on_manifest(self) -> tuple[bytes, bytes] | None:
        return None if self.manifest is None else (self.manifest.raw, self.manifest.signature)

    def on_state(self, fresh: bool = False, wanted: str = "") -> StateIndex | None:
        """None as well while the copy is being made, or an outer step moves the params: the joiner asks again in a
        moment. Raises PartnerRefused when this state is far behind the run's."""
        if self._shelf is None:
            return None
        if why := self._why_not():
            raise PartnerRefused("outdated", why)
        return self._shelf.on_state(fresh, wanted)

    def on_piece(self, snapshot: str, piece: int) -> memoryview | None:
        if snapshot.startswith(FRAGMENT_PREFIX) and self._fragments is not None:
            return self._fragments.on_piece(snapshot, piece)
        return None if self._shelf is None else self._shelf.on_piece(snapshot, piece)
