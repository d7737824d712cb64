"""Downloads the pieces of a state or of an artifact from several donors at once.

`PieceScheduler` decides which donor fetches which piece. A donor's index describes what it offers.

On failure: a donor is dropped when it is lost, when it misses the deadline that its own rate sets, or when it no longer
has the snapshot. Its piece goes to another donor, and `add` may bring the donor back. A donor of wrong bytes never
comes back. A busy donor is asked again at the time it names. When no donor is left, `run` returns and the pieces
stay."""

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
"""Seconds after which a donor without a piece looks again for one to race."""
REPORT_S = 0.25
"""Least seconds between two calls of `changed` while only bytes arrive."""
MOST_NAMED = 3
"""Most donors that a progress text names with their rates."""


Index = TypeVar("Index")
ContraIndex = TypeVar("ContraIndex", contravariant=True)


class PieceTransport(Protocol[ContraIndex]):
    """The call of a transport that a download uses."""

    async def fetch_piece(
        self, donor: PeerRecord, index: ContraIndex, piece: int, timeout_s: float, arrived: Arrived
    ) -> bytes: ...


class PieceTarget(Protocol[ContraIndex]):
    """Where a download stores its pieces."""

    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of each piece."""

    @property
    def held(self) -> Container[int]:
        """Numbers of the pieces that are stored."""

    def store(self, number: int, index: ContraIndex, data: bytes) -> None:
        """Check a donor's piece and write it to disk. Called in a thread, before `place`.

        Raises BadPayload when the piece does not match the donor's index."""

    def place(self, number: int, index: ContraIndex, data: bytes) -> None:
        """Add a stored piece to `held`. Called in the event loop, after `store`."""


@dataclass(slots=True)
class Outcome:
    """Statistics of a download. It may be shared by several attempts."""

    given: dict[PeerId, int] = field(default_factory=dict)
    """Donor -> bytes of its pieces that were stored."""
    received: int = 0
    """Bytes of all pieces that arrived completely, including pieces that another donor had delivered first."""
    raced: int = 0
    """Bytes of pieces that were requested from a second donor while the first was still sending."""
    left: dict[PeerId, str] = field(default_factory=dict)
    """Donor that was dropped -> reason."""
    wrong: set[PeerId] = field(default_factory=set)
    """The dropped donors that gave wrong bytes."""

    def count_received(self, nbytes: int) -> None:
        self.received += nbytes

    def count_raced(self, nbytes: int) -> None:
        self.raced += nbytes

    def count_given(self, donor: PeerId, nbytes: int) -> None:
        self.given[donor] = self.given.get(donor, 0) + nbytes


@dataclass(frozen=True, slots=True)
class TransferFlow:
    """The present activity of a download."""

    rates: Mapping[PeerId, float] = field(default_factory=dict)
    """Active donor -> its rate in bytes per second. 0: not known yet."""
    arriving: int = 0
    """Bytes of incomplete pieces that have arrived."""

    def __str__(self) -> str:
        """Return the number of donors and the rates of the fastest, for a person."""
        count = f"{len(self.rates)} donor{'s' * (len(self.rates) != 1)}"
        known = sorted((-rate, peer) for peer, rate in self.rates.items() if rate > 0)
        named = [f"{peer[-8:]} {amount(-rate, 'bytes')}/s" for rate, peer in known[:MOST_NAMED]]
        return f"{count}: {', '.join(named)}" if named else count


class Download(Generic[Index]):
    """One attempt to download all pieces: `add` donors, then await `run`. Donors may also be added while it runs.

    `rates`: measured rates of donors, which the download updates. `changed(flow)` is called when bytes have arrived and
    when a donor was added or dropped. `offload`: runs `PieceTarget.store` in a thread."""

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
        """The signal of each donor that waits for a piece."""
        self._over = False
        self._reported_at = -math.inf

    @property
    def donors(self) -> frozenset[PeerId]:
        """The active donors."""
        return frozenset(peer for peer, task in self._serving.items() if not task.done())

    def left_s(self) -> float:
        """Return the estimated seconds until all pieces are here. 0: no rate is known yet."""
        rate = sum(self._scheduler.rates(self._now()).values())
        here = sum(self._sizes[number] for number in range(len(self._sizes)) if number in self._pieces.held)
        return max(0, sum(self._sizes) - here - self._scheduler.arriving) / rate if rate > 0 else 0.0

    def add(self, donor: PeerRecord, index: Index) -> None:
        """Add a donor, whose index the caller has checked.

        Ignored if the donor is active already or gave wrong bytes, and after `run` has ended."""
        peer = donor.peer_id
        if self._over or peer in self.donors or peer in self.outcome.wrong:
            return
        self.outcome.left.pop(peer, None)
        self._serving[peer] = asyncio.get_running_loop().create_task(self._serve(donor, index))
        self._report()

    async def run(self) -> None:
        """Download until all pieces are here or no donor is left.

        Cancellation ends all fetches, and so does an unexpected error of one, which is raised."""
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
        """Fetch pieces from one donor until it is dropped or all pieces are here."""
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
        """Fetch one piece from a donor and store it, unless another donor was faster."""
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
            await asyncio.gather(task, return_exceptions=True)  # ignores the error of the cancelled call
            raise
        finally:
            del self._fetching[piece, peer]
        if task.cancelled():  # cancelled by the task of another donor, which has delivered this piece
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
        """Call `changed` with the present activity. `without`: a donor that is being dropped."""
        self._reported_at = self._now()
        measured = self._scheduler.rates(self._reported_at)
        rates = {peer: measured.get(peer, self._rates.of(peer)) for peer in self.donors if peer != without}
        self._changed(TransferFlow(rates, self._scheduler.arriving))

    def _wake_idle(self) -> None:
        """Wake the donors that wait for a piece."""
        for wakeup in self._idle:
            wakeup.set()

    async def _wait_for_work(self, seconds: float) -> None:
        """Wait until there may be a piece to fetch, at most `seconds`."""
        wakeup = Signal()
        self._idle[wakeup] = None
        try:
            await wakeup.wait_for(seconds)
        finally:
            del self._idle[wakeup]

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
