"""The owner's side of one shard in one round: takes the members' contributions, averages them once, and gives the same
encoded result to everybody, itself included.

Contributions are kept as they came, encoded, at most one for each member; all of them together are as large as one
member's whole contribution. Waits until all members have contributed; with a quorum of them, as long again as the
quorum took, and `LEAST_GRACE_S`; at most until its deadline. What comes later is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from peer.codec.plain import finite
from peer.daemon.grouping import Bell, GroupAround
from peer.errors import BadPayload, PartnerRefused
from peer.outer.groupmean import norm, too_far, weighted_mean
from peer.protocol.messages import PeerId
from peer.protocol.payload import BufferSink
from peer.protocol.roster import Roster
from peer.protocol.shards import Opening, Seat, Shard, ShardResult
from peer.protocol.vouchers import digest_of, statement

LEAST_GRACE_S = 2.0
PLACES_OF_MEMBER = 2
"""A member whose stream broke may begin anew before we notice. Each place holds a buffer."""


@dataclass(frozen=True, slots=True)
class Part:
    """A complete contribution; once `done` it is let go."""

    tokens: int
    payload: bytes | bytearray


class Desk:
    """`lacking`: why these contributors are too few, empty when they are enough. `deadline`: run time."""

    def __init__(
        self,
        around: GroupAround,
        roster: Roster,
        shard: Shard,
        lacking: Callable[[Collection[PeerId]], str],
        deadline: float,
    ) -> None:
        self.roster = roster
        self.shard = shard
        self._around = around
        self._lacking = lacking
        self._deadline = deadline
        self._parts: dict[PeerId, Part] = {}
        self._closed = False
        self._open: Counter[PeerId] = Counter()
        self._refused: dict[PeerId, PartnerRefused] = {}
        self._outcome: ShardResult | PartnerRefused | None = None
        self._bell = Bell()

    @property
    def over(self) -> bool:
        return self._outcome is not None

    async def run(self, own: bytes, tokens: int) -> ShardResult:
        """Collect and average. Raises PartnerRefused (`none`) when there is no result; a cancelled desk tells those
        that wait."""
        try:
            await self._collect(own, tokens)
            self._outcome = await self._averaged()
        finally:
            self.give_up()
        if isinstance(self._outcome, PartnerRefused):
            raise self._outcome
        return self._outcome

    def give_up(self) -> None:
        """Nothing more will come of it; does nothing once there is an outcome."""
        self._closed = True
        self._parts.clear()
        self._outcome = self._outcome or PartnerRefused("gone", "the owner of the shard gave the round up")
        self._bell.ring()

    async def _collect(self, own: bytes, tokens: int) -> None:
        clock, began = self._around.clock, self._around.clock.now()
        self._parts[self._around.me] = Part(tokens, own)
        until, quorate = self._deadline, False
        while len(self._parts) < len(self.roster.members) and (now := clock.now()) < until:
            if not quorate and not self._lacking(self._parts.keys()):
                until, quorate = min(until, now + (now - began) + LEAST_GRACE_S), True
                continue
            await self._bell.wait(until - now)
        self._closed = True

    async def _averaged(self) -> ShardResult | PartnerRefused:
        parts = dict(sorted(self._parts.items()))
        combined = await self._around.offload(lambda: self._combine(parts))
        for peer, error in combined.bad.items():
            self._around.conduct.offence(peer, error.code, error.reason)
            self._refused[peer] = PartnerRefused(f"bad_payload:{error.code}", error.reason)
        if combined.payload is None:
            return PartnerRefused("none", f"no result: {combined.lacking}")
        index = {peer: number for number, peer in enumerate(self.roster.members)}
        return self._signed(combined.payload, tuple(index[peer] for peer in combined.named))

    def _signed(self, payload: bytes, named: tuple[int, ...]) -> ShardResult:
        """Who gives two members different results has put its name to both."""
        said = statement(self.roster.name(), self.shard.index, digest_of(payload, named))
        return ShardResult(payload, named, self._around.seal.sign(said))

    def _combine(self, parts: Mapping[PeerId, Part]) -> _Combined:
        """In a worker thread. In the order of ids, own ones like all others: what is averaged is what travelled."""
        combined, good, around = _Combined(), {}, self._around
        for peer, part in parts.items():
            try:
                good[peer] = self._decoded(part)
            except BadPayload as error:
                combined.bad[peer] = error
        if good:
            for far in map(PeerId, too_far({peer: norm(values) for peer, values in good.items()})):
                combined.bad[far] = BadPayload("norm", "a contribution many times larger than those of the others")
                del good[far]
        combined.named = tuple(good)
        combined.lacking = self._lacking(combined.named)
        if not combined.lacking:
            mean = weighted_mean(list(good.values()), [parts[peer].tokens for peer in good])
            combined.payload = around.result_codec.encode(mean)
        return combined

    def _decoded(self, part: Part) -> Tensor:
        values = self._around.codec.decode(part.payload, self.shard.elements)
        if not finite(values):
            raise BadPayload("not_finite", "a contribution holds NaN or infinity")
        return values

    # -- what others ask ---------------------------------------------------------------------------------------------

    def seat(self, sender: PeerId, opening: Opening) -> Seat:
        """Raises PartnerRefused: `late` (ask for the result alone), `have`, or what was wrong."""
        due = self._around.codec.nbytes(self.shard.elements)
        if opening.nbytes == 0:
            return _Place(self, sender, 0, None)
        if opening.nbytes != due:
            reason = f"{opening.nbytes} bytes announced, {due} are due"
            self._around.conduct.offence(sender, "length", reason)
            raise PartnerRefused("bad_payload:length", reason)
        if sender in self._parts or sender in self._refused:
            raise PartnerRefused("have", "your contribution is here already")
        if self._closed:
            raise PartnerRefused("late", "this shard is closed; ask for its result")
        if self._open[sender] >= PLACES_OF_MEMBER:
            raise PartnerRefused("busy", "you are sending this contribution already")
        self._open[sender] += 1
        return _Place(self, sender, opening.tokens, BufferSink(due))

    def take(self, sender: PeerId, part: Part) -> None:
        if self._closed:
            raise PartnerRefused("late", "this shard was closed before your contribution was complete")
        self._parts.setdefault(sender, part)
        self._bell.ring()

    def left_s(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._deadline - self._around.clock.now())

    def left(self, sender: PeerId) -> None:
        """A place with a buffer is given back."""
        self._open[sender] -= 1

    async def result_for(self, sender: PeerId) -> ShardResult:
        """Bounded by the deadline, and by the time that averaging takes."""
        while self._outcome is None:
            await self._bell.wait(LEAST_GRACE_S)
        if sender in self._refused:
            raise self._refused[sender]
        if isinstance(self._outcome, PartnerRefused):
            raise self._outcome
        return self._outcome


@dataclass(slots=True)
class _Combined:
    named: tuple[PeerId, ...] = ()
    payload: bytes | None = None
    lacking: str = ""
    bad: dict[PeerId, BadPayload] = field(default_factory=dict)


class _Place(Seat):
    """One served contribution."""

    def __init__(self, desk: Desk, sender: PeerId, tokens: int, sink: BufferSink | None) -> None:
        self.sink = sink
        self.patience_s = desk.left_s()
        self._buffer = sink
        self._desk = desk
        self._sender = sender
        self._tokens = tokens

    def complete(self) -> None:
        assert self._buffer is not None
        self._desk.take(self._sender, Part(self._tokens, self._buffer.data))

    async def result(self) -> ShardResult:
        return await self._desk.result_for(self._sender)

    def leave(self) -> None:
        if self._buffer is not None:
            self._desk.left(self._sender)
            self.sink = self._buffer = None
