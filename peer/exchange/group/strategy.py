"""The topology `group`: all members of a round average pseudo-gradients and take the same outer step.
`peer.exchange.group.member` runs the exchange itself.

On failure: without a roster no outer step is taken and the work is kept for the next round. If a shard's owner dies,
the shard is not updated and its work is dropped. A member whose state differs from the group's fetches the group's
state and drops its own work; the journal names the reason."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from torch import Tensor

from peer.aio.tasks import background_task
from peer.aio.threads import Offload
from peer.codec.error_feedback import ErrorFeedback
from peer.codec.stream import Flat
from peer.errors import ExchangeError, NoRoster, Stale
from peer.exchange.buffers import Buffers
from peer.exchange.group.member import GroupMean, GroupMember
from peer.exchange.payloads import PseudoGradient
from peer.exchange.strategy import ExchangeControls, ExchangeResult, MissedState
from peer.exchange.throughput import TransferMeter
from peer.methods.method import Method
from peer.outer.state import OuterState
from peer.outer.values import GroupState, MeanGradient, NoStep
from peer.ports.trainer import WorkSnapshot
from peer.protocol.group.roster import Roster
from peer.protocol.ledger import WorkShare
from peer.protocol.messages import PeerId, RoundKey
from peer.protocol.schedule import pairing_window

LEAST_ASK_S = 1.0
"""Least seconds between two requests for a state that this peer lacks. In long rounds it is half a window."""
WENT_ON = "the group went on without this peer in the round before"
BEFORE_NEXT = 0.06
"""Fraction of a round. In streaming schedules an exchange that is not complete ends this long before the fragment's
next round, with the shards that have arrived."""


@dataclass(frozen=True, slots=True)
class GroupStrategy:
    """DiLoCo's exchange.

    The pseudo-gradient is computed piece by piece from `outer_params` and the trainer's snapshot, which is read in
    place as in pairs. The mean lies in a buffer that `GroupSession.exchange` borrows until its context is left, that is
    until the outer step has used it."""

    method: Method
    outer: OuterState
    group: GroupMember
    buffers: Buffers
    offload: Offload
    controls: ExchangeControls
    feedback: dict[int, ErrorFeedback] = field(default_factory=dict)
    """Error feedback per fragment, for codecs that lose enough to need it."""

    @property
    def transfers(self) -> TransferMeter:
        return self.controls.transfers

    @property
    def members(self) -> int:
        return max(1, self.group.report().live)

    @property
    def shares_state(self) -> bool:
        return True

    def start_at(self, round_: int) -> None:
        self.group.start_at(round_)

    def reset(self) -> None:
        self.group.reset()

    @asynccontextmanager
    async def open_round(self, key: RoundKey, opens_at: float, closes_at: float) -> AsyncIterator[GroupSession]:
        ask_every_s, due = max(LEAST_ASK_S, (closes_at - opens_at) / 4), (opens_at + closes_at) / 2
        probing = background_task(self.group.probe_leaders(key, opens_at, due))
        async with background_task(self.group.audit()), probing:
            yield GroupSession(self, key, opens_at, ask_every_s)

    async def find_later_state(self, fragment: int, reason: str, at_last: bool = False) -> MissedState | None:
        """Fetch the group's state of a fragment, before the first round and after the last one.

        Needed before the first round because a state from a donor or a checkpoint may lack momentum or be of an earlier
        round. Returns None if there is no group, if we already hold its state, or if no peer serves it. In the last
        case the first round finds that our state is stale."""
        self.controls.set_activity(f"asking the group for its state of fragment {fragment}")
        own = await self.digest(fragment)
        self.group.set_state_digest(fragment, own)
        with suppress(ExchangeError):
            key = RoundKey(0, fragment)
            if (found := await self.group.catch_up(key, None, own, at_last=at_last)) is not None:
                return self.missed(found, reason)
        return None

    def note_state(self, fragment: int, digest: bytes) -> None:
        self.group.set_state_digest(fragment, digest)

    def missed(self, found: tuple[Tensor, Tensor], reason: str) -> MissedState:
        """Wrap the tensors that `GroupMember.catch_up` returned."""
        return MissedState(GroupState(*found), self.group.donor or PeerId(""), reason)

    async def digest(self, fragment: int) -> bytes:
        return await self.offload(lambda: self.outer.digest(fragment))


class GroupSession:
    """One round of one fragment: averages this peer's work with the group."""

    def __init__(self, groups: GroupStrategy, key: RoundKey, opens_at: float, ask_every_s: float) -> None:
        self._groups = groups
        self._key = key
        self._opens_at = opens_at
        self._ask_every_s = ask_every_s

    async def fetch_missed_state(self) -> MissedState | None:
        """Fetch the fragment's state, if this peer missed its last round or a part of it.

        The others have moved on, and their state has to be in place before the fragment's next round. Repeats until a
        later state is found, since the members may not have applied the round yet."""
        groups, key = self._groups, self._key
        while groups.controls.wants_partners() and not groups.group.up_to_date(key):
            own = await groups.digest(key.fragment)
            with suppress(ExchangeError):
                if (found := await groups.group.catch_up(key, None, own, settle_s=0.0)) is not None:
                    return groups.missed(found, WENT_ON)
            await groups.group.pause(self._ask_every_s)
        return None

    def must_finish(self, due_in_s: float) -> bool:
        """Return False: a group closes its roster without the members that pause."""
        return False

    @asynccontextmanager
    async def exchange(
        self, work: WorkSnapshot, work_share: WorkShare, closes_at: float
    ) -> AsyncIterator[ExchangeResult]:
        with self._groups.buffers.acquire() as buffer:
            yield await self._exchange(work, work_share, closes_at, buffer)

    async def _exchange(
        self, work: WorkSnapshot, work_share: WorkShare, closes_at: float, buffer: Tensor
    ) -> ExchangeResult:
        groups, fragment = self._groups, self._key.fragment
        if not groups.controls.wants_partners():
            return ExchangeResult("carried", "we are leaving or pausing")
        if why := groups.controls.no_exchange_reason():
            return ExchangeResult("carried", why)
        groups.controls.set_activity("exchanging with the group")
        groups.group.expect_steps(work.seconds / work.steps if work.steps else 0.0)
        gradient, outer = await self._gradient(work, work_share), groups.outer.fragment(fragment)
        into = buffer[: gradient.numel()]
        base = await groups.digest(fragment)
        weight = max(1, round(work.tokens * work_share.share))
        try:
            got = await groups.group.exchange(
                self._key, gradient, base, weight, self._opens_at, closes_at, self._give_up(closes_at), into, outer
            )
        except Stale as stale:
            return await self._catch_up(stale, cast(Roster, stale.roster), work_share, self._give_up(closes_at))
        except NoRoster as none:
            return ExchangeResult("carried", str(none))
        if not got.spans:  # if another member has a result, its next roster shows that our state is stale
            return ExchangeResult("carried", got.reason or "no shard had a result")
        if (feedback := groups.feedback.get(fragment)) is not None:
            assert isinstance(gradient, Tensor)
            await groups.offload(partial(feedback.settle, gradient, got.named))
        return self._stepped(got, work_share)

    def _give_up(self, closes_at: float) -> float:
        """Return the run time at which an exchange that is not complete ends with the shards that have arrived: shortly
        before the fragment's next round. Infinite unless the schedule is `streaming` and the clock counts seconds."""
        method = self._groups.method
        if method.clock != "seconds" or method.schedule != "streaming":
            return math.inf
        round_s = method.round_length
        return closes_at - pairing_window(round_s) + (1.0 - BEFORE_NEXT) * round_s

    def late_result(self, work: WorkSnapshot, work_share: WorkShare) -> ExchangeResult:
        held = self._groups.group.on_held(self._key.fragment)
        unmoved = NoStep(b"" if held is None else held.digest)
        return ExchangeResult(
            "refused", "the fragment was due again", unmoved, dropped=work_share.applied + work_share.dropped
        )

    async def _gradient(self, work: WorkSnapshot, work_share: WorkShare) -> Flat:
        """Return the pseudo-gradient. A copy is made only if the outer rule corrects it or error feedback is added."""
        groups, fragment = self._groups, self._key.fragment
        params, base = work.params, groups.outer.fragment(fragment)
        if (own := groups.outer.ahead.get(fragment)) is not None:
            params, base = own.ahead, own.base
        feedback, rule = groups.feedback.get(fragment), groups.method.outer_rule
        if feedback is None and not rule.corrects:
            return PseudoGradient(params, base, work_share.share)

        def made() -> Tensor:
            gradient = groups.outer.contribution(fragment, params.clone(), rule, work_share.share, base)
            return gradient if feedback is None else feedback.add_to_(gradient)

        return await groups.offload(made)

    async def _catch_up(self, stale: Stale, roster: Roster, work_share: WorkShare, until: float) -> ExchangeResult:
        groups, fragment = self._groups, self._key.fragment
        try:
            found = await groups.group.catch_up(self._key, roster, await groups.digest(fragment), until=until)
        except ExchangeError as error:
            return ExchangeResult("carried", f"{stale}; its state could not be had: {error}")
        if found is None:
            return ExchangeResult("carried", f"{stale}; meanwhile it is the same as ours")
        return ExchangeResult(
            "refused", str(stale), GroupState(*found), dropped=work_share.applied + work_share.dropped
        )

    def _stepped(self, got: GroupMean, work_share: WorkShare) -> ExchangeResult:
        elements = self._groups.outer.layout.fragment_elements(self._key.fragment)
        applied = work_share.applied * sum(end - start for start, end in got.named) // elements
        return ExchangeResult(
            "exchanged",
            got.reason or _dropped_reason(got, elements),
            MeanGradient(got.mean, got.spans),
            applied=applied,
            dropped=work_share.applied + work_share.dropped - applied,
            members=got.members,
            report=got.report,
        )


def _dropped_reason(got: GroupMean, elements: int) -> str:
    """Return why a part of our contribution is not in the mean, as text for a person; empty if all of it is."""
    left_out = elements - sum(end - start for start, end in got.named)
    return f"our part of {left_out} of {elements} elements came too late, or was refused" if left_out else ""
