"""Download of pieces from several donors at once: of a state, or of an artifact.

`peer.state.transfer.scheduler` decides which donor brings which piece. An index says what a donor gives.

On failure: a donor leaves when it is lost, too slow for its own rate, or no longer has the snapshot. Its
piece in flight goes to another donor, and it may come back. A donor of wrong bytes never comes back. A busy donor is
asked again at the time it names. Without any donor left `run` returns, and all pieces that are here stay."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

from peer.aio.events import Signal
from peer.aio.threads import Offload, inline
from peer.codes import Code
from peer.errors import BadPayload, ExchangeError, PartnerRefused
from peer.observe.formatting import amount
from peer.protocol.messages import PeerId, PeerRecord
from peer.protocol.policy.donors import DonorRates, busy_wait_s
from peer.protocol.wire.payload import Arrived
from peer.state.transfer.scheduler import PieceScheduler

IDLE_S = 0.25
"""Seconds after which a donor without work looks for a piece to race."""
REPORT_S = 0.25
"""Seconds between two calls of `changed`, at least, while nothing but bytes comes."""
MOST_NAMED = 3
"""Donors that are named to a person with their rates."""


Index = TypeVar("Index")
ContraIndex = TypeVar("ContraIndex", contravariant=True)


class PieceTransport(Protocol[ContraIndex]):
    """The part of a transport that a download needs."""

    async def fetch_piece(
        self, donor: PeerRecord, index: ContraIndex, piece: int, timeout_s: float, arrived: Arrived
    ) -> bytes: ...


class PieceTarget(Protocol[ContraIndex]):
    """The pieces that a download completes."""

    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of each piece."""

    @property
    def held(self) -> Container[int]:
        """Numbers of the pieces that are here."""

    def store(self, number: int, index: ContraIndex, data: bytes) -> None:
        """Check a donor's piece and write it to disk, in a thread. `place` follows.

        Raises BadPayload when the piece is not the one in the donor's index."""

    def place(self, number: int, index: ContraIndex, data: bytes) -> None:
        """Take note that a stored piece is here."""


@dataclass(slots=True)
class Outcome:
    """Result of a download, so far."""

    given: dict[PeerId, int] = field(default_factory=dict)
    """Bytes of pieces that were taken, per donor."""
    received: int = 0
    """Bytes of all complete pieces received, with those that lost a race."""
    raced: int = 0
    left: dict[PeerId, str] = field(default_factory=dict)
    """Donors that are no longer asked, and why."""
    wrong: set[PeerId] = field(default_factory=set)
    """Donors among them that gave wrong bytes."""

    def count_received(self, nbytes: int) -> None:
        self.received += nbytes

    def count_raced(self, nbytes: int) -> None:
        self.raced += nbytes

    def count_given(self, donor: PeerId, nbytes: int) -> None:
        self.given[donor] = self.given.get(donor, 0) + nbytes


@dataclass(frozen=True, slots=True)
class TransferFlow:
    """The part of a download that is under way."""

    rates: Mapping[PeerId, float] = field(default_factory=dict)
    """Bytes per second of the donors that are asked; 0: not known yet."""
    arriving: int = 0
    """Bytes that are here of pieces that are not complete."""

    def __str__(self) -> str:
        """Name the donors for a person, the fastest first."""
        count = f"{len(self.rates)} donor{'s' * (len(self.rates) != 1)}"
        known = sorted((-rate, peer) for peer, rate in self.rates.items() if rate > 0)
        named = [f"{peer[-8:]} {amount(-rate, 'bytes')}/s" for rate, peer in known[:MOST_NAMED]]
        return f"{count}: {', '.join(named)}" if named else count


class Download(Generic[Index]):
    """One attempt to download all pieces.

    `changed(flow)` is called when bytes have come, and when a donor comes or leaves."""

    def __init__(
        self,
        transport: PieceTransport[Index],
        pieces: PieceTarget[Index],
        rates: DonorRates,
        outcome: Outcome,
        changed: Callable[[TransferFlow], None] = lambda flow: None,
        offload: Offload = inline,
    ) -> None:
        self._transport = transport
        self._pieces = pieces
        self._rates = rates
        self.outcome = outcome
        self._changed = changed
        self._offload = offload
        self._sizes = pieces.sizes
        self._scheduler = PieceScheduler(self._sizes, pieces.held, rates)
        self._serving: dict[PeerId, asyncio.Task[None]] = {}
        self._fetching: dict[tuple[int, PeerId], asyncio.Task[bytes]] = {}
        self._idle: dict[Signal, None] = {}
        """Signals of the donors without work, one each."""
        self._over = False
        self._reported_at = -math.inf

    @property
    def donors(self) -> frozenset[PeerId]:
        """Donors that are asked now."""
        return frozenset(peer for peer, task in self._serving.items() if not task.done())

    def left_s(self) -> float:
        """Return the seconds until all pieces are here, as far as was measured; 0: nothing was yet."""
        rate = sum(self._scheduler.rates(self._now()).values())
        here = sum(self._sizes[number] for number in range(len(self._sizes)) if number in self._pieces.held)
        return max(0, sum(self._sizes) - here - self._scheduler.arriving) / rate if rate > 0 else 0.0

    def add(self, donor: PeerRecord, index: Index) -> None:
        """Fetch from this donor too, whose index has been checked. A donor that is asked already is not added twice,
        and none is once `run` has ended."""
        peer = donor.peer_id
        if self._over or peer in self.donors or peer in self.outcome.wrong:
            return
        self.outcome.left.pop(peer, None)
        self._serving[peer] = asyncio.get_running_loop().create_task(self._serve(donor, index))
        self._report()

    async def run(self) -> None:
        """Run until all pieces are here, or no donor is left. Cancellation, or an error of a worker, ends all
        fetches."""
        try:
            while not self._scheduler.complete and (asked := [t for t in self._serving.values() if not t.done()]):
                await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                for task in self._serving.values():
                    if task.done():
                        task.result()
        finally:
            self._over = True
            for task in self._serving.values():
                task.cancel()
            await asyncio.gather(*self._serving.values(), return_exceptions=True)
            self.outcome.count_raced(self._scheduler.raced)

    async def _serve(self, donor: PeerRecord, index: Index) -> None:
        """Let one donor bring pieces until it leaves or there is no piece to bring."""
        peer, busy = donor.peer_id, 0
        while not self._scheduler.complete:
            piece = self._scheduler.assign(peer, self._now())
            if piece is None:
                await self._wait_for_work(IDLE_S)
                continue
            try:
                await self._fetch(donor, index, piece)
                busy = 0
            except PartnerRefused as refusal:
                self._scheduler.unassign(peer, piece)
                busy += 1
                wait_s = busy_wait_s(busy, refusal.eta_s)
                if refusal.code != Code.BUSY or wait_s is None:
                    self._drop_donor(peer, f"{refusal.reason} ({refusal.code})")
                    return
                self._wake_idle()
                await asyncio.sleep(wait_s)
            except ExchangeError as error:
                self._scheduler.unassign(peer, piece)
                self._rates.failed(peer)
                if isinstance(error, BadPayload):
                    self.outcome.wrong.add(peer)
                self._drop_donor(peer, str(error))
                return
            except asyncio.CancelledError:
                self._scheduler.unassign(peer, piece)
                raise

    async def _fetch(self, donor: PeerRecord, index: Index, piece: int) -> None:
        """Fetch one piece and take it, unless another donor was first."""
        peer, began = donor.peer_id, self._now()
        nbytes = self._sizes[piece]
        arrived = partial(self._arrived, peer, piece)
        call = self._transport.fetch_piece(donor, index, piece, self._rates.deadline_s(peer, nbytes), arrived)
        task = asyncio.ensure_future(call)
        self._fetching[piece, peer] = task
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)  # its error no longer matters
            raise
        finally:
            del self._fetching[piece, peer]
        if task.cancelled():  # another donor was first
            return
        data = task.result()
        self._rates.observe(peer, nbytes, self._now() - began)
        self.outcome.count_received(nbytes)
        if piece in self._pieces.held:
            return
        await self._offload(partial(self._pieces.store, piece, index, data))
        if piece in self._pieces.held:
            return
        self._pieces.place(piece, index, data)
        self.outcome.count_given(peer, nbytes)
        for other in self._scheduler.complete_piece(piece):
            if (slower := self._fetching.get((piece, other))) is not None:
                slower.cancel()
        self._wake_idle()
        self._report()

    def _arrived(self, peer: PeerId, piece: int, nbytes: int) -> None:
        self._scheduler.count_arrived(peer, piece, nbytes)
        if self._now() - self._reported_at >= REPORT_S:
            self._report()

    def _drop_donor(self, peer: PeerId, why: str) -> None:
        self.outcome.left[peer] = why
        self._wake_idle()
        self._report(without=peer)

    def _report(self, without: PeerId | None = None) -> None:
        """Tell what is under way. `without`: a donor that leaves now."""
        self._reported_at = self._now()
        measured = self._scheduler.rates(self._reported_at)
        rates = {peer: measured.get(peer, self._rates.of(peer)) for peer in self.donors if peer != without}
        self._changed(TransferFlow(rates, self._scheduler.arriving))

    def _wake_idle(self) -> None:
        """Wake the donors without work."""
        for wakeup in self._idle:
            wakeup.set()

    async def _wait_for_work(self, seconds: float) -> None:
        """Wait until there may be work, at most so long."""
        wakeup = Signal()
        self._idle[wakeup] = None
        try:
            await wakeup.wait_for(seconds)
        finally:
            del self._idle[wakeup]

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
