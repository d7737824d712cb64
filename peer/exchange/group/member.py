"""A group's exchange (the DiLoCo family): all members hold the same state and take the same step. `GroupMember`
connects the parts: `Rendezvous` agrees on one roster for each round, `ShardExchange` sends our contribution to the
owner of each shard and receives its result, `ShardReducer` averages the shard that we own, `CatchUp` fetches the
group's state after a round was missed, `Auditor` checks results of other owners, and a `Quorum` for each fragment
decides whether enough members contributed.

Each member sends every shard's owner its encoded part of the pseudo-gradient and receives the encoded mean on the same
stream. All members decode the same bytes. On failure: if an owner dies, its shard has no result in this round; if
another member dies, the mean does not include it; if there are too few contributors, there is no result
(`peer.protocol.group.quorum` explains why this prevents diverging states). Nothing is applied by this module: the
caller takes the outer step with the result of `exchange`."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from peer.aio.events import Condition
from peer.codec.stream import Flat
from peer.codes import Code
from peer.errors import BadPayload, PartnerRefused
from peer.exchange.deadlines import ASSUMED_RATE, START_S, transfer_s
from peer.exchange.group.audit import Auditor
from peer.exchange.group.catchup import CatchUp
from peer.exchange.group.context import GroupContext, drop_finished_rounds
from peer.exchange.group.evidence import ShownEvidence
from peer.exchange.group.outcome import ShardOutcome, joined, report_of, vouchers_of
from peer.exchange.group.proof import ShardProof
from peer.exchange.group.reducer import ShardReducer
from peer.exchange.group.rendezvous import Rendezvous
from peer.exchange.group.shard_exchange import ShardExchange
from peer.exchange.validation import finite
from peer.methods.codec_specs import result_nbytes
from peer.observe import events
from peer.observe.status.value import GroupStatus, LeftOutContributor
from peer.ports.memory_store import MemoryStore, NoMemoryStore
from peer.protocol.group.contributor_judge import ContributorJudge, PartsComparison
from peer.protocol.group.plausibility import ResultHistory
from peer.protocol.group.quorum import Base, Quorum
from peer.protocol.group.quorum_codec import pack, unpack
from peer.protocol.group.receipts import Vouchers
from peer.protocol.group.roster import Join, JoinReply, Roster
from peer.protocol.group.shards import ContributionHeader, Shard, UploadSlot
from peer.protocol.messages import PeerId, RoundKey, SwapReport

PARK_S = 4.0
"""If a contribution arrives before this owner has the roster, the call is held for at most this many seconds. Then the
sender is asked to try again. Shorter than the time after which a caller gives up an unanswered call."""
COLLECT_PART = 0.7
"""An owner collects contributions for this part of the time until the round is given up, so that time is left to send
the results."""


@dataclass(frozen=True, slots=True)
class GroupMean:
    """The mean of a round. Spans are half-open ranges of elements of the fragment, ascending."""

    mean: Tensor
    """Flat fp32 of the fragment; undefined outside `spans`."""
    spans: list[tuple[int, int]]
    """Elements that have a result: the outer step changes only these."""
    named: list[tuple[int, int]]
    """Elements whose result includes our contribution. The ledger counts them as applied, and error feedback as
    sent."""
    members: tuple[PeerId, ...]
    report: SwapReport
    reason: str
    """Why elements have no result, as text for a person; empty if all have one."""
    shards: list[tuple[int, int]]
    """The shards of all owners; together they cover the fragment."""


class GroupMember:
    """One peer's part in all rounds of a group. It is also the `GroupHandler` that answers the other members' calls."""

    def __init__(
        self,
        context: GroupContext,
        store: MemoryStore | None = None,
        scratch: Path | None = None,
        emit: Callable[[events.Event], None] = lambda event: None,
    ) -> None:
        """`store`: keeps the accepted rosters across restarts, so that members that were cut off from the group and
        restarted do not found a second group. `scratch`: folder for fetched states; None: fetched states are kept in
        memory. `emit`: journals an event."""
        self._context, self._emit = context, emit
        period = len(context.terms.elements)
        self._quorums = [Quorum(period, context.terms.founders) for _ in context.terms.elements]
        self._held: list[bytes] = [b""] * period
        self._pending: list[Base | None] = [None] * period
        """Per fragment: the state that the outer step now due will produce. Its digest is empty until it is
        computed."""
        self._incomplete = [False] * period
        """Per fragment: whether we lack a part of its last round."""
        self._history = [ResultHistory() for _ in context.terms.elements]
        """Per fragment: measures of the results that were applied lately."""
        self._vouchers: list[tuple[Vouchers, tuple[PeerId, ...]]] = [(Vouchers(), ())] * period
        """Per fragment: the results that owners signed in its last round, and the owner of each shard."""
        self._judge = ContributorJudge()
        self._left_out: dict[PeerId, str] = {}
        """The contributors that were excluded from the last result of our shard, with the reasons."""
        self._auditor = Auditor(context, scratch)
        self._scratch = scratch
        self._shown: ShownEvidence | None = None
        """The evidence of our last result."""
        self._rendezvous = Rendezvous(context, self._quorums)
        self._catch_up = CatchUp(context, scratch)
        self._reducers: OrderedDict[RoundKey, ShardReducer | None] = OrderedDict()
        self._begun: set[RoundKey] = set()
        self._latest: RoundKey | None = None
        self._changed = Condition()
        self._rate = ASSUMED_RATE
        self._store = store or NoMemoryStore()
        self._kept = pack(self._quorums)
        self._recall(self._store.read())

    # -- called by the strategy --------------------------------------------------------------------------------------

    def set_state_digest(self, fragment: int, digest: bytes) -> None:
        """Set the digest of our state of this fragment (`OuterState.digest`). Call it after every change of the state.
        Only then can other members fetch the state, and only then does the roster that produced it count for our
        quorum."""
        coming = self._pending[fragment]
        if coming is not None and digest != self._held[fragment] and coming.digest in (b"", digest):
            self._quorums[fragment].adopt(coming)
            self._pending[fragment] = None
            self._incomplete[fragment] = (
                self._incomplete[fragment] and not coming.digest
            )  # our own outer step does not fill in missing parts
        self._held[fragment] = digest

    def start_at(self, round_: int) -> None:
        """Set the first round that this peer takes part in."""
        self._rendezvous.start_at(round_)

    async def probe_leaders(self, key: RoundKey, opens_at: float, due: float) -> None:
        """Find out which of the round's first leaders answer, between two run times. Cancelling it leaves nothing
        running."""
        await self._rendezvous.probe_leaders(key, opens_at, due)

    async def audit(self) -> None:
        """Recompute results of the last round that are doubted or were drawn at random. Runs until it is cancelled,
        which leaves nothing running."""
        await self._auditor.run()

    @property
    def proofs(self) -> list[ShardProof]:
        """The latest proofs of false results, at most `peer.exchange.group.audit.KEPT_PROOFS`."""
        return self._auditor.proofs

    async def exchange(
        self,
        key: RoundKey,
        gradient: Flat,
        base: bytes,
        tokens: int,
        opens_at: float,
        closes: float,
        give_up: float = math.inf,
        into: Tensor | None = None,
        outer: Flat | None = None,
    ) -> GroupMean:
        """Average the flat fp32 pseudo-gradient of a fragment over the group, weighted by tokens. Call it once per key.

        `gradient`: read in place; it must not change during the call. `base`: digest of the state that the gradient was
        computed against. `outer`: that state's params; None: results are checked against the gradient alone.
        `opens_at`, `closes`: run times between which the members agree on a roster. After `closes` the transfers may
        take as long as measured rates predict, and at most until `give_up` (run time): shards without a result by then
        are left unchanged. `into`: receives the mean, flat fp32 of the gradient's length; None: a new tensor.

        Take the outer step with the result, then call `set_state_digest`. A cancelled call leaves nothing running, but
        the other members then lack the shard that we own.

        Raises NoRoster: the work stays. Raises Stale: catch up with the group first. In both cases no mean includes our
        work."""
        context = self._context
        assert gradient.numel() == context.terms.elements[key.fragment], gradient.numel()
        into = torch.empty(gradient.numel()) if into is None else into
        assert into.shape == (gradient.numel(),), into.shape
        assert tokens > 0, tokens
        quorum = self._quorums[key.fragment]
        self.set_state_digest(key.fragment, base)
        self._pending[key.fragment] = None  # the last result was not applied
        self._latest = key if self._latest is None else max(self._latest, key)
        self._begun.add(key)
        try:
            fit = await context.offload(lambda: finite(gradient))
            assert fit, "the trainer never leaves params that are not finite"
            await self._remember()
            roster = await self._rendezvous.agree_roster(
                key, quorum.base(base), opens_at, closes, *self._vouchers[key.fragment]
            )
            quorum.accepted(key.round, roster.members)
            await self._remember()
            averaged = await self._round(
                ShardExchange(context, roster, gradient, tokens, into, outer, self._history[key.fragment].last_rms),
                give_up,
            )
        finally:
            self._begun.discard(key)
            if (reducer := self._reducers.setdefault(key, None)) is not None:
                reducer.give_up()
            drop_finished_rounds(self._reducers, lambda reducer: reducer is None or reducer.over)
            self._changed.notify_all()
        if averaged.spans:
            self._pending[key.fragment] = Base(b"", roster.members, key.round)
        self._incomplete[key.fragment] = averaged.spans != [(0, gradient.numel())]
        return averaged

    def expect_steps(self, step_s: float) -> None:
        """Set the duration of this peer's inner step, in seconds. Other members join when their own step ends, so that
        this peer waits about as long for them when it leads a round."""
        self._rendezvous.grace.expect_steps(step_s)

    async def catch_up(
        self,
        key: RoundKey,
        roster: Roster | None = None,
        own: bytes = b"",
        settle_s: float = 10.0,
        until: float = math.inf,
        at_last: bool = False,
    ) -> tuple[Tensor, Tensor] | None:
        """Fetch the group's state of a fragment: (outer_params, outer_momentum), flat fp32, digest verified.

        Put both in place at once, then call `set_state_digest`: this peer then also takes over the group's electors.
        Returns None if the group's state has the digest `own`, which is that of our state, or if no member knows of a
        roster yet.

        `roster`: the roster of `Stale`; None outside a round. `until`: run time at which the state is needed.
        `settle_s`: seconds to wait for the members to apply the present round, at most half of the time left before
        `until`. `at_last`: no round follows, so the state of more than half of the members is fetched even if it is
        earlier than ours. Raises PartnerLost."""
        settle_s = min(settle_s, max(0.0, (until - self._context.clock.now()) / 2))
        if roster is not None and self._quorums[key.fragment].shortfall_reason(key.round, roster.members):
            settle_s = 0.0  # too few members for a result: the roster only shows which state counts
        ours = self._quorums[key.fragment].base(own) if roster is None else None
        found = await self._catch_up.fetch(key, roster, own, settle_s, ours, at_last)
        if found is None:
            return None
        base, values = found
        if values is None:
            self._quorums[key.fragment].adopt(base)
            self._incomplete[key.fragment] = False
        self._pending[key.fragment] = None if values is None else base
        return values

    def up_to_date(self, key: RoundKey) -> bool:
        """Return whether our state includes all results of the fragment's last round."""
        last = key.round - len(self._quorums)
        return last < 0 or (self._quorums[key.fragment].since >= last and not self._incomplete[key.fragment])

    async def pause(self, seconds: float) -> None:
        """Wait between two requests for a state."""
        await self._context.clock.sleep(seconds)

    @property
    def donor(self) -> PeerId | None:
        """The peer that gave the state of the last `catch_up`."""
        return self._catch_up.donor

    def _recall(self, raw: bytes) -> None:
        """Restore the kept rosters; start without any if they cannot be read."""
        with contextlib.suppress(ValueError):
            for quorum, kept in zip(self._quorums, unpack(raw, len(self._quorums)), strict=True):
                quorum.recall(kept)
            self._kept = raw

    async def _remember(self) -> None:
        """Save the rosters if they have changed. Called before anything that other members rely on."""
        if (raw := pack(self._quorums)) != self._kept:
            self._kept = raw
            await self._context.offload(lambda: self._store.write(raw))

    def report(self) -> GroupStatus:
        """Return the state of the group for `peer status`."""
        context, key = self._context, self._latest or RoundKey(0, 0)
        live, quorum = context.live(), self._quorums[key.fragment]
        lacking = quorum.shortfall_reason(key.round, live, context.counted())
        left_out = tuple(LeftOutContributor(peer, why) for peer, why in self._left_out.items())
        return GroupStatus(len(live), quorum.needed(context.counted()), lacking, left_out)

    def reset(self) -> None:
        """Forget all that was agreed, because the operator has replaced the run's state."""
        self._quorums[:] = [Quorum(len(self._quorums)) for _ in self._quorums]
        self._pending[:] = [None] * len(self._pending)
        self._history[:] = [ResultHistory() for _ in self._history]
        self._judge = ContributorJudge()

    # -- one round ---------------------------------------------------------------------------------------------------

    async def _round(self, sharing: ShardExchange, give_up: float) -> GroupMean:
        context, roster, elements = self._context, sharing.roster, sharing.gradient.numel()
        key, began = roster.key, context.clock.now()
        shards = context.terms.mean.cut(roster, elements)
        budget_s = self._budget_s(elements, len(roster.members))
        reducer = self._make_reducer(
            roster, shards, min(began + START_S + budget_s, began + COLLECT_PART * (give_up - began))
        )
        self._reducers[key] = reducer
        self._changed.notify_all()
        until = min(began + START_S + 2 * budget_s, give_up)
        async with asyncio.TaskGroup() as all_:
            tasks = [
                all_.create_task(
                    sharing.average_own(reducer)
                    if reducer is not None and shard == reducer.shard
                    else sharing.contribute(shard, until)
                )
                for shard in shards
            ]
        given = [task.result() for task in tasks]
        seconds = context.clock.now() - began
        self._shown = None if reducer is None else reducer.shown
        shared = [g for shard, g in zip(shards, given, strict=True) if shard.owner != context.terms.me]
        self._learn_rate(sum(g.sent + g.received for g in shared), seconds)
        return await self._averaged(roster, shards, given, sharing, seconds)

    def _make_reducer(self, roster: Roster, shards: list[Shard], deadline: float) -> ShardReducer | None:
        own = next((shard for shard in shards if shard.owner == self._context.terms.me), None)
        if own is None:
            return None
        return ShardReducer(
            self._context,
            roster,
            own,
            lambda peers: self._lacking(roster, peers),
            deadline,
            self._scratch,
            partial(self._leave_out, roster),
        )

    def _leave_out(self, roster: Roster, compared: PartsComparison) -> Collection[PeerId]:
        """Return the contributors to exclude from the mean of our shard, and journal them."""
        self._left_out = self._judge.judge(compared)
        for peer, why in self._left_out.items():
            key = roster.key
            self._emit(events.ContributorLeftOut(round=key.round, fragment=key.fragment, peer=peer, reason=why))
        return self._left_out

    def _lacking(self, roster: Roster, contributors: Collection[PeerId]) -> str:
        """Return why these contributors are too few for the owner to average (`peer.protocol.group.quorum`), or an
        empty string. The roster was accepted when the round began."""
        return self._quorums[roster.key.fragment].shortfall_reason(roster.key.round, contributors)

    async def _averaged(
        self, roster: Roster, shards: list[Shard], given: list[ShardOutcome], sharing: ShardExchange, seconds: float
    ) -> GroupMean:
        checked, reasons = await self._checked(shards, given, sharing)
        self._vouchers[roster.key.fragment] = vouchers_of(roster, shards, checked)
        results = [(shard, p.measured) for shard, p in zip(shards, checked, strict=True) if p.measured is not None]
        foreign = {shard.index: result for shard, result in results if shard.owner != self._context.terms.me}
        history = self._history[roster.key.fragment]
        doubts = history.doubts(foreign, len(roster.members))
        for index, why in doubts.items():
            reasons.append(f"{shards[index].owner}: refused, as {why}")
            self._emit_refused(roster.key, shards[index], Code.IMPLAUSIBLE, why)
        results = [(shard, result) for shard, result in results if shard.index not in doubts]
        history.applied([result for _, result in results])
        self._auditor.select_results(roster, shards, checked, doubts.keys())
        spans = [(shard.start, shard.end) for shard, _ in results]
        named = [(shard.start, shard.end) for shard, result in results if result.names_us]
        report = report_of(given, seconds, complete=not reasons)
        told, cuts = "; ".join(reasons)[:500], [(shard.start, shard.end) for shard in shards]
        return GroupMean(sharing.into, joined(spans), joined(named), roster.members, report, told, cuts)

    async def _checked(
        self, shards: list[Shard], given: list[ShardOutcome], sharing: ShardExchange
    ) -> tuple[list[ShardOutcome], list[str]]:
        """Check each shard's result. Return the outcomes, with measures if the result passed, and the reasons for
        missing results."""
        checked, reasons = list[ShardOutcome](), list[str]()
        for shard, part in zip(shards, given, strict=True):
            checked.append(part)
            if not part.result_digest:
                reasons.append(part.why or f"{shard.owner}: no result in time")
                continue
            try:
                checked[-1] = await self._context.offload(partial(sharing.check, shard, part))
            except BadPayload as error:
                reasons.append(f"{shard.owner}: {error}")
                self._emit_refused(sharing.roster.key, shard, error.code, error.reason)
                self._context.reputation.penalize(shard.owner, error.code, error.reason)
        return checked, reasons

    def _emit_refused(self, key: RoundKey, shard: Shard, code: Code, why: str) -> None:
        told = events.ResultRefused(round=key.round, fragment=key.fragment, peer=shard.owner, code=code, reason=why)
        self._emit(told)

    def _budget_s(self, elements: int, members: int) -> float:
        """Return the seconds that the transfer of the contributions may take. The transfer of the results may take the
        same time again."""
        terms = self._context.terms
        rate = min(self._rate, terms.max_upload or self._rate)
        nbytes = 2 * terms.mean.codec.nbytes(elements) + result_nbytes(terms.mean.result_codec.name, elements, members)
        return transfer_s(nbytes, rate)

    def _learn_rate(self, nbytes: int, seconds: float) -> None:
        if nbytes:
            self._rate = max(1e3, 0.5 * (self._rate + nbytes / max(seconds, 1e-3)))

    # -- incoming calls ----------------------------------------------------------------------------------------------

    async def on_join(self, sender: PeerId, join: Join) -> JoinReply:
        return await self._rendezvous.on_join(sender, join)

    def on_held(self, fragment: int) -> Base | None:
        if not 0 <= fragment < len(self._held) or not self._held[fragment]:
            return None
        return self._quorums[fragment].base(self._held[fragment])

    def on_shown(self, name: str, piece: int) -> memoryview | None:
        return None if self._shown is None else self._shown.on_piece(name, piece)

    async def on_contribution(self, sender: PeerId, header: ContributionHeader) -> UploadSlot:
        """Open an upload for a member's contribution to our shard. Raises PartnerRefused. Waits up to PARK_S if this
        peer does not have the round's roster yet."""
        self._context.peer_table.detector.heard(sender, "it contributed")
        if why := self._context.refusal_reason(sender):
            raise PartnerRefused(Code.REFUSED, why)
        reducer = await self._reducer_of(header.key)
        if header.key in self._begun and header.key not in self._reducers:
            raise PartnerRefused(Code.LATER, "this peer has not come to a roster of that round yet")
        if reducer is None or reducer.roster.name() != header.roster:
            raise PartnerRefused(Code.OTHER_ROSTER, "this peer is not in that roster of this round")
        if sender not in reducer.roster.members:
            self._context.reputation.penalize(sender, Code.ROSTER, "contributed to a roster that it is not in")
            raise PartnerRefused(Code.ROSTER, "you are not in that roster")
        if header.shard != reducer.shard.index:
            raise PartnerRefused(Code.SHARD, f"this peer owns shard {reducer.shard.index}, not {header.shard}")
        return reducer.open_upload(sender, header)

    async def _reducer_of(self, key: RoundKey) -> ShardReducer | None:
        until = self._context.clock.now() + PARK_S
        while key not in self._reducers and (now := self._context.clock.now()) < until:
            if key not in self._begun and self._latest is not None and key <= self._latest:
                return None
            await self._changed.wait_for(until - now)
        return self._reducers.get(key)
