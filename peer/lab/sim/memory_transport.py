"""The `Transport` of a simulated peer: calls that the in-memory network carries."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from blake3 import blake3

from peer.aio.events import Signal
from peer.codes import Code
from peer.errors import BadPayload, PartnerLost, PartnerRefused, PartnerSilent
from peer.lab.sim.group_network import MemoryGroup
from peer.lab.sim.network import Network
from peer.lab.sim.reconnect import ReconnectingSink, carried, lingering
from peer.lab.sim.swap_rendezvous import LingeringSource, Meeting
from peer.membership.relay_reservations import Granted
from peer.ports.clock import Clock
from peer.ports.directory import Shown
from peer.ports.handler import Handler
from peer.protocol.diagnosis.analysis import believed
from peer.protocol.messages import (
    MAX_ARTIFACTS,
    MAX_SHOWN_RECORDS,
    Answer,
    Offer,
    PayloadDigests,
    PeerId,
    PeerRecord,
    PeerTimings,
    Probed,
    RelayWord,
    RoundKey,
    StateIndex,
    SwapReport,
    Verdict,
    Vouched,
    Way,
    Welcome,
    artifact_name,
)
from peer.protocol.pair.receipt import MAX_SHOWN, ShownReceipt, SignedOpinion
from peer.protocol.summary.book import FORGED
from peer.protocol.swarm.failure_detection import HEARD_S
from peer.protocol.swarm.relay_word import is_stale
from peer.protocol.wire.payload import Arrived, Sink, Source, untold
from peer.transport.policy import OPEN, TransportPolicy
from peer.transport.server.indirect_probe import DIAL_S
from peer.transport.wire.payload_stream import UploadBudget

T = TypeVar("T")

RESERVE_S = 5.0
"""Seconds that a relay may take to give a place."""
SILENT_S = 40.0
"""Seconds for which a relay that holds a place may say nothing."""

LEAST_RATE = 62_500.0
"""Bytes per second at which a state has to arrive at least, for the bytes that the held bytes stand for."""


class MemoryTransport(MemoryGroup):
    """One peer's end of a `Network`."""

    def __init__(
        self,
        network: Network,
        me: PeerId,
        handler: Handler,
        clock: Clock,
        policy: TransportPolicy = OPEN,
        why_banned: Callable[[PeerId], str] = lambda peer: "",
    ) -> None:
        """`why_banned`: why the operator keeps a peer out, for a person; empty: it is not banned."""
        super().__init__(network, me, clock)
        self._handler = handler
        self._policy = policy
        self._why_banned = why_banned
        network._hosts[me] = self

    def close(self) -> None:
        self._network.kill(self._me)

    def admit(self, caller: PeerId) -> None:
        """Admit a caller as `peer.transport.server.admission` does. Raises PartnerRefused."""
        if why := self._why_banned(caller):
            raise PartnerRefused(Code.BANNED, why)
        if why := self._policy.reputation.exclusion_reason(caller):
            raise PartnerRefused(Code.STANDING, why)

    def may_give(self) -> None:
        """Raise PartnerRefused where the volunteer's quota holds no state and no artifact."""
        if why := self._policy.quota.why_not_give():
            raise PartnerRefused(Code.BUDGET, why)

    @property
    def quota(self) -> UploadBudget:
        return self._policy.quota

    async def _ask(
        self, to: PeerId, timeout_s: float, serve: Callable[[MemoryTransport], T], *, even_banned: bool = False
    ) -> T:
        """Make a small call: there, served at once, and back. It sets no timer for its deadline, since most simulated
        calls are small and meet it. Raises PartnerLost, PartnerSilent, and the errors of `serve`."""
        network, by = self._network, asyncio.get_running_loop().time() + timeout_s
        try:
            host = await network.reach(self._me, to, by=by)
            if not even_banned:
                host.admit(self._me)
            answer = serve(host)
            await network.reach(to, self._me, answer=True, by=by)
        except TimeoutError:
            raise _silent(to, timeout_s) from None
        return answer

    async def forget_connections(self) -> None:
        """There are none here."""

    async def hello(self, to: PeerRecord, timeout_s: float) -> Welcome:
        before = self._clock.now()
        theirs = await self._ask(to.peer_id, timeout_s, lambda host: host._clock.now())
        after = self._clock.now()
        middle = (before + after) / 2 - self._clock.correction
        return Welcome(theirs - middle, after - before, f"memory:{self._me}")

    def offer(self, to: PeerRecord, offer: Offer, timeout_s: float) -> Coroutine[Any, Any, Answer]:
        return self._ask(to.peer_id, timeout_s, lambda host: host._handler.on_offer(self._me, offer))

    async def probe(self, by: PeerRecord, endpoints: tuple[str, ...], timeout_s: float) -> Probed:
        await self._ask(by.peer_id, timeout_s, lambda host: None)
        reached = self._network.paths.is_open(self._me)
        return Probed(endpoints, endpoints if reached else (), "" if reached else "no answer", by.endpoints[0])

    async def hold_reservation(self, relay: PeerRecord, granted: Granted) -> None:
        """Hold a place at a relay until it is gone or silent. Raises PartnerRefused (`busy`) where it has no place."""
        paths, at, me, broken = self._network.paths, relay.peer_id, self._me, Signal()
        if not await self._ask(at, RESERVE_S, lambda host: paths.reserve(host._me, me, broken.set)):
            raise PartnerRefused(Code.BUSY, f"{at} has no place for a reservation")
        word: RelayWord | None = None
        try:
            while True:
                if is_stale(word, self._clock.now()):
                    word = self._network.word(at, me, self._clock.now())
                    granted(paths.cap(at), word)
                if await broken.wait_for(SILENT_S):
                    raise PartnerLost(f"{at} is gone")
                if not self._network.flows_between(at, me):
                    raise PartnerSilent(f"nothing came from {at} for {SILENT_S:.0f} s", Code.SILENT)
        finally:
            paths.give_back(at, me)

    def relay_gone(self, partner: PeerId, within_s: float) -> PeerId | None:
        """None: a simulated swap goes on over another relay as soon as there is one."""
        return None

    def take_callers(self) -> tuple[str, ...]:
        """Nobody: addresses mean nothing here."""
        return ()

    async def vouch(self, by: PeerRecord, about: PeerId, timeout_s: float) -> Vouched:
        async def call() -> Vouched:
            host = await self._network.reach(self._me, by.peer_id)
            host.admit(self._me)
            vouched = await host._look(*host._handler.on_vouch(about), about)
            await self._network.reach(by.peer_id, self._me, answer=True)
            return vouched

        return await _bounded(call(), timeout_s, by.peer_id)

    async def _look(self, record: PeerRecord | None, heard_ago_s: float | None, about: PeerId) -> Vouched:
        """Answer for a third peer, as `peer.transport.server.indirect_probe` does, without its limits."""
        if heard_ago_s is not None and heard_ago_s <= HEARD_S:
            return Vouched(True, f"heard from {heard_ago_s:.0f} s ago")
        if record is None:
            return Vouched(None, "no address of it is known here")
        try:
            await _bounded(self._network.reach(self._me, about), DIAL_S, about)
        except PartnerLost as error:
            return Vouched(False, str(error))
        return Vouched(True, "it answers")

    async def swap(
        self,
        partner: PeerRecord,
        key: RoundKey,
        source: Source,
        sink: Sink,
        timeout_s: float,
        dial: bool,
        told: PeerTimings | None = None,
        needs: float = 0.0,
    ) -> SwapReport:
        lasting, begun = LingeringSource(source), list[ReconnectingSink]()
        try:
            with contextlib.ExitStack() as held:
                if dial and needs:
                    paths, weight = self._network.paths, self._network.weight
                    held.enter_context(paths.connected(self._me, partner.peer_id, needs * weight))
                swap = self._swap(partner.peer_id, key, lasting, sink, dial, told, begun)
                report = await _bounded(swap, timeout_s, partner.peer_id)
        except PartnerSilent as error:
            raise (begun[0].broken if begun else None) or error from None
        finally:
            lasting.keep()
            self._network.meetings.part(self._me, partner.peer_id, key)
        return replace(report, digests=PayloadDigests(begun[0].digest, lasting.digest))

    async def _swap(
        self,
        partner: PeerId,
        key: RoundKey,
        lasting: LingeringSource,
        sink: Sink,
        dial: bool,
        told: PeerTimings | None,
        begun: list[ReconnectingSink],
    ) -> SwapReport:
        if dial:
            host = await self._network.reach(self._me, partner)
            host.admit(self._me)
            answer = host._handler.on_swap(self._me, key)
            if answer.verdict in (Verdict.TAKEN, Verdict.REFUSED):
                raise PartnerRefused(Code(answer.verdict), answer.reason or f"{partner} does not swap {key}")
        if self._network.mute(self._me):
            await asyncio.Event().wait()
        meeting = self._network.meetings.of(self._me, partner, key)
        meeting.sides[self._me] = (lasting, sink, told)
        if len(meeting.sides) == 2:
            meeting.both.set()
        await meeting.both.wait()
        started = self._clock.now()
        theirs = self._network.tamper(partner, meeting.sides[partner][0])
        if theirs.nbytes != sink.nbytes:
            raise BadPayload(Code.LENGTH, f"{partner} announces {theirs.nbytes} bytes, {sink.nbytes} are due")
        self._network.gave(partner, key, theirs)
        arriving = ReconnectingSink(theirs.nbytes, sink, theirs)
        begun.append(arriving)
        way = await self._carried(partner, key, meeting, arriving, dial)
        meeting.content.add(self._me)
        self._network.taken[way.path] += not key.part
        heard = believed(meeting.sides[partner][2], told)
        return SwapReport(lasting.nbytes, theirs.nbytes, self._clock.now() - started, True, heard, way=way)

    async def _carried(
        self, partner: PeerId, key: RoundKey, meeting: Meeting, arriving: ReconnectingSink, dial: bool
    ) -> Way:
        """Receive the partner's payload. It is there for us until the partner leaves, and for a while when the partner
        has everything."""
        network, me = self._network, self._me

        def gave_up() -> bool:
            return partner not in meeting.content and not network.meetings.is_on(me, partner, key, meeting)

        def patience_s() -> float:
            return lingering(partner in meeting.content)

        calls = me if dial else partner
        return await carried(network, partner, me, arriving, calls=calls, is_lost=gave_up, patience_s=patience_s)

    def receipt(
        self, partner: PeerRecord, signed: SignedOpinion, timeout_s: float
    ) -> Coroutine[Any, Any, SignedOpinion | None]:
        return self._ask(partner.peer_id, timeout_s, lambda host: host._handler.on_receipt(self._me, signed))

    def shown_receipts(self, by: PeerRecord, timeout_s: float) -> Coroutine[Any, Any, list[ShownReceipt]]:
        return self._ask(by.peer_id, timeout_s, lambda host: host._handler.shown_receipts()[:MAX_SHOWN])

    def send_summary(self, to: PeerRecord, raw: bytes, timeout_s: float) -> Coroutine[Any, Any, str]:
        def serve(host: MemoryTransport) -> str:
            dropped = host._handler.on_summary(self._me, self._me, raw)
            if dropped == FORGED:
                raise PartnerRefused(Code.RECORD, "a summary that your key did not sign")
            return dropped

        return self._ask(to.peer_id, timeout_s, serve)

    def fetch_amendments(
        self, to: PeerRecord, held: int, head: bytes, timeout_s: float
    ) -> Coroutine[Any, Any, list[tuple[bytes, bytes]]]:
        return self._ask(to.peer_id, timeout_s, lambda host: host._handler.on_amendments(held, head), even_banned=True)

    def fetch_papers(self, to: PeerRecord, held: Sequence[bytes], timeout_s: float) -> Coroutine[Any, Any, list[bytes]]:
        return self._ask(to.peer_id, timeout_s, lambda host: host._handler.on_papers(held))

    def fetch_peers(self, to: PeerRecord, own: Shown, timeout_s: float) -> Coroutine[Any, Any, list[Shown]]:
        def serve(host: MemoryTransport) -> list[Shown]:
            return host._handler.on_peers(self._me, own)[:MAX_SHOWN_RECORDS]

        return self._ask(to.peer_id, timeout_s, serve)

    async def fetch_manifest(self, to: PeerRecord, timeout_s: float) -> tuple[bytes, bytes]:
        async def call() -> tuple[bytes, bytes]:
            host = await self._network.reach(self._me, to.peer_id)
            host.admit(self._me)
            manifest = host._handler.on_manifest()
            if manifest is None:
                raise PartnerRefused(Code.NO_MANIFEST, f"{to.peer_id} has no manifest yet")
            return manifest

        return await _bounded(call(), timeout_s, to.peer_id)

    async def describe_state(
        self, donor: PeerRecord, timeout_s: float, fresh: bool = False, wanted: str = ""
    ) -> StateIndex:
        def serve(host: MemoryTransport) -> StateIndex:
            host.may_give()
            index = host._handler.on_state(fresh, wanted)
            if index is None:
                raise PartnerRefused(Code.NO_STATE, f"{donor.peer_id} has no complete state to give")
            self._network.gave(donor.peer_id, None, None)
            return index

        return await self._ask(donor.peer_id, timeout_s, serve)

    def answered_at(self, peer: PeerId) -> str:
        return self._network.address(peer)

    async def ask_artifacts(self, holder: PeerRecord, digests: Sequence[bytes], timeout_s: float) -> list[bool]:
        assert len(digests) <= MAX_ARTIFACTS

        def serve(host: MemoryTransport) -> list[bool]:
            host.may_give()
            return host._handler.on_artifacts(digests)

        return await self._ask(holder.peer_id, timeout_s, serve)

    async def fetch_artifact(
        self, donor: PeerRecord, digest: bytes, piece: int, nbytes: int, timeout_s: float, arrived: Arrived = untold
    ) -> bytes:
        async def call() -> bytes:
            data = await self._given(donor.peer_id, artifact_name(digest), piece, arrived)
            if len(data) != nbytes:
                raise BadPayload(Code.LENGTH, f"{len(data)} bytes announced, {nbytes} are due")
            return bytes(data)

        return await _bounded(call(), timeout_s, donor.peer_id)

    async def _given(self, donor: PeerId, snapshot: str, piece: int, arrived: Arrived = untold) -> memoryview:
        """Fetch one piece, unchecked. Raises PartnerRefused and PartnerLost."""
        host = await self._network.reach(self._me, donor)
        host.admit(self._me)
        data = host._handler.on_piece(snapshot, piece)
        if data is None:
            raise PartnerRefused(Code.GONE, f"{donor} no longer keeps {snapshot}")
        arriving = ReconnectingSink(len(data), arrived=arrived)
        patience_s = partial(lingering, True)
        await carried(self._network, donor, self._me, arriving, calls=self._me, patience_s=patience_s, giving=True)
        return data

    async def fetch_piece(
        self, donor: PeerRecord, index: StateIndex, piece: int, timeout_s: float, arrived: Arrived = untold
    ) -> bytes:
        async def call() -> bytes:
            data = await self._given(donor.peer_id, index.snapshot, piece, arrived)
            if blake3(data).digest() != index.pieces[piece].digest:
                raise BadPayload(Code.DIGEST, f"piece {piece} from {donor.peer_id} does not match its digest")
            return bytes(data)

        named = index.pieces[piece].nbytes
        more_s = named * (self._network.weight - 1) / LEAST_RATE  # the caller knows only of the bytes that are held
        return await _bounded(call(), timeout_s + max(0.0, more_s), donor.peer_id)


async def _bounded(call: Coroutine[Any, Any, T], timeout_s: float, who: PeerId) -> T:
    try:
        async with asyncio.timeout(timeout_s):
            return await call
    except TimeoutError:
        raise _silent(who, timeout_s) from None


def _silent(who: PeerId, timeout_s: float) -> PartnerSilent:
    return PartnerSilent(f"{who} did not answer within {timeout_s:.1f} s")
