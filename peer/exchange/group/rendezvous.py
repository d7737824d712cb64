"""Agrees on a round's roster for one member of a group. It asks the members that come earlier in the round's order of
leaders to lead, leads itself if none of them does, and answers the members that ask it.

A leader is skipped if it does not answer, answers that it has no roster, or has not reached the round by the middle of
the remaining window. A member that is asked while it waits for another leader holds the call, and answers it with the
roster that it gets.

Before the round is due, the first leaders in the order are probed. Those that do not answer are moved to the end of the
order, and asked in parallel to all others."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from peer.aio.events import Condition
from peer.aio.tasks import background_task, cancel_and_wait, race
from peer.codes import Code
from peer.errors import BadPayload, ExchangeError, NoRoster, PartnerLost, PartnerRefused, PartnerSilent, Stale
from peer.exchange.group.context import GroupContext, drop_finished_rounds
from peer.protocol.group.quorum import Base, Quorum
from peer.protocol.group.receipts import NO_VOUCHERS, Vouchers, contradictions
from peer.protocol.group.roster import (
    Grace,
    Join,
    JoinReply,
    JoinStatus,
    Roster,
    RosterBuilder,
    SignedRoster,
    leaders,
    parse_roster,
)
from peer.protocol.group.shards import owner_reach
from peer.protocol.messages import PeerId, PeerRecord, RoundKey

LEAST_POLL_S = 0.5
MOST_POLL_S = 5.0
LEAST_SILENT_S, MOST_SILENT_S = 0.5, 2.0
"""Bounds, in seconds, of a leader's extra time. A leader may answer that much later than the end of the time for which
it was asked to hold the call. The extra time is a quarter of the remaining window, or the timeout of its calls if that
is longer."""
PROBED = 3
"""Number of leaders that are probed before the round is due."""
LEAST_PROBE_S = 0.5
LOOK_S = 1.0
"""Seconds after which a leader notices at the latest that a peer came or went."""
MAX_PARKED = 128


@dataclass(slots=True)
class RendezvousRound:
    """The state of one round, from the moment when this peer begins to look for its roster."""

    join: Join
    builder: RosterBuilder | None = None
    signed: SignedRoster | None = None
    over: str = ""
    """Why this peer has no roster to give; empty while it may still get one."""
    owners: Sequence[PeerId] = ()
    """The owner of each shard in the round that the vouchers in `join.vouchers` are about."""

    @property
    def ended(self) -> bool:
        return bool(self.signed or self.over)

    def start_collecting(self, builder: RosterBuilder) -> None:
        """Lead the round: collect members with this builder."""
        self.builder = builder

    def set_roster(self, signed: SignedRoster) -> None:
        """Record the agreed roster, which is the answer to members that ask from now on."""
        self.signed = signed

    def end(self) -> None:
        """Record that this peer stops asking. Without a roster, members that ask get a refusal from now on."""
        self.over = "" if self.signed else "this peer came to no roster"


class Rendezvous:
    """Agrees on the roster of each round for one member of a group: asks other members to lead, leads itself if none
    does, and answers the members that ask it.

    `quorums`: one for each fragment, shared with `GroupMember`."""

    def __init__(self, context: GroupContext, quorums: list[Quorum]) -> None:
        self._context = context
        self._quorums = quorums
        self._rounds: OrderedDict[RoundKey, RendezvousRound] = OrderedDict()
        self._latest: RoundKey | None = None
        self._first = 0
        self._silent: tuple[RoundKey, frozenset[PeerId]] | None = None
        """A round, and its leaders that did not answer the probe before it was due."""
        self._changed = Condition()
        self.grace = Grace()
        self._parked = 0

    # -- our own part ------------------------------------------------------------------------------------------------

    def start_at(self, round_: int) -> None:
        """Set the first round that we take part in. Members that ask about an earlier round are refused at once."""
        self._first = round_
        self._changed.notify_all()

    async def probe_leaders(self, key: RoundKey, opens_at: float, due: float) -> None:
        """Call the first leaders in the round's order, from `opens_at` until shortly before `due` (run times), so that
        a dead leader does not use up a part of the window."""
        context = self._context
        await context.clock.sleep(opens_at - context.clock.now())
        first = [peer for peer in self._order(key) if peer != context.terms.me][:PROBED]
        left_s = due - context.clock.now() - LEAST_PROBE_S
        if left_s < LEAST_PROBE_S:
            return
        async with asyncio.TaskGroup() as calling:
            calls = {peer: calling.create_task(self._answers(peer, key.fragment, left_s)) for peer in first}
        silent = frozenset(peer for peer, call in calls.items() if not call.result())
        if len(silent) < max(2, len(calls)):  # if none of several answers, our own link is the likely cause
            self._silent = key, silent

    async def _answers(self, peer: PeerId, fragment: int, within_s: float) -> bool:
        context, began = self._context, self._context.clock.now()
        if (record := context.peer_table.peers.get(peer)) is None:
            return False
        try:
            await context.transport.held(record, fragment, min(within_s, context.peer_table.detector.timeout(peer)))
        except PartnerLost as error:
            context.peer_table.detector.lost(
                peer, "it did not answer before a round", error, context.clock.now() - began
            )
            return False
        except ExchangeError:
            return False  # it answered with a refusal, so it is alive
        context.peer_table.detector.answered(peer, context.clock.now() - began)
        return True

    def _order(self, key: RoundKey) -> list[PeerId]:
        """Return the leaders in the order in which we ask them: by hash, those that did not answer the probe last."""
        context = self._context
        peers = context.peer_table.peers
        callable_ = {peer for peer in context.live() if peer in peers and peers[peer].reach}
        if context.peer_table.own_reach():
            callable_.add(context.terms.me)
        silent = self._silent_in(key)
        return sorted(leaders(context.terms.run_id, key, callable_), key=lambda peer: peer in silent)

    def _silent_in(self, key: RoundKey) -> frozenset[PeerId]:
        return self._silent[1] if self._silent is not None and self._silent[0] == key else frozenset()

    async def _from_silent(self, join: Join, closes: float) -> tuple[SignedRoster, Roster] | None:
        """Ask the leaders that did not answer the probe, in parallel to the others: they may only have been busy for a
        moment.

        Return the first of their rosters that includes us; None: there is none."""
        known, me = self._context.peer_table.peers, self._context.terms.me
        found: asyncio.Future[tuple[SignedRoster, Roster]] = asyncio.get_running_loop().create_future()

        async def ask(peer: PeerRecord) -> None:
            with contextlib.suppress(ExchangeError):
                signed, roster = await self._ask_leader(peer, join, closes)
                if me in roster.members and not found.done():
                    found.set_result((signed, roster))

        async def ask_all() -> None:
            async with asyncio.TaskGroup() as asking:
                # sorted, because a set's order differs from process to process
                for peer in sorted(self._silent_in(join.key) & known.keys()):
                    asking.create_task(ask(known[peer]))

        await race(found, ask_all())
        return found.result() if found.done() else None

    async def _roster(self, seeking: RendezvousRound, opens_at: float, closes: float) -> tuple[SignedRoster, Roster]:
        """Return the roster of the leaders asked in turn, or that of a silent leader if it comes first.

        Raises NoRoster if there is none; no call is under way then."""
        if not self._silent_in(seeking.join.key):
            return await self._first_that_leads(seeking, opens_at, closes)
        in_turn = asyncio.create_task(self._first_that_leads(seeking, opens_at, closes))
        try:
            async with background_task(self._from_silent(seeking.join, closes)) as beside:
                await asyncio.wait({in_turn, beside}, return_when=asyncio.FIRST_COMPLETED)
                if not in_turn.done() and (found := beside.result()) is not None:
                    return found
                return await in_turn
        finally:
            await cancel_and_wait(in_turn)

    async def agree_roster(
        self,
        key: RoundKey,
        base: Base,
        opens_at: float,
        closes: float,
        given: Vouchers = NO_VOUCHERS,
        owners: Sequence[PeerId] = (),
    ) -> Roster:
        """Return the roster of this round. It includes us, and our quorum accepts it. Returns soon after `closes` (run
        time) at the latest. Call it once per key.

        `given`: the results that owners signed for us in this fragment's last round. They are compared with those of
        other members, which reveals an owner that signed two. `owners`: the owner of each shard in that round.

        Raises NoRoster; Stale if the others build on another state."""
        assert key not in self._rounds, key
        context = self._context
        nbytes = context.terms.mean.owner_nbytes(context.terms.elements[key.fragment], context.terms.max_group)
        round_s = 4 * (closes - opens_at)  # the window is a quarter of the round
        reach = owner_reach(context.peer_table.own_reach(), context.peer_table.relay_rate(), nbytes, round_s)
        seeking = self._rounds[key] = RendezvousRound(Join(key, base, reach, vouchers=given), owners=owners)
        self._latest = key if self._latest is None else max(self._latest, key)
        for quorum in self._quorums:
            quorum.record_live(context.counted())
        self._changed.notify_all()
        try:
            await context.clock.sleep(opens_at - context.clock.now())
            signed, roster = await self._roster(seeking, opens_at, closes)
            seeking.set_roster(signed)
        finally:
            seeking.end()
            self._changed.notify_all()
            drop_finished_rounds(self._rounds, lambda seeking: seeking.ended)
        self._check_place(seeking.join, roster)
        return roster

    def _check_place(self, join: Join, roster: Roster) -> None:
        """Check that we may act on this roster. Raises NoRoster or Stale."""
        quorum, live = self._quorums[join.key.fragment], self._context.counted()
        why = quorum.shortfall_reason(join.key.round, roster.members, live)
        ours, theirs = join.base, roster.base
        beside = (theirs.since, theirs.electors) == (ours.since, ours.electors)
        # never adopt an older state that too few members hold
        if theirs.mark() != ours.mark() and (not why or beside or theirs.since > ours.since):
            raise Stale("the group builds on another state of the fragment than ours", roster)
        if self._context.terms.me not in roster.members:
            raise NoRoster(f"the roster of {roster.leader} was closed without us: late, or the group is full")
        if why:
            raise NoRoster(f"the roster of {roster.leader} is too small: {why}")

    async def _first_that_leads(
        self, seeking: RendezvousRound, opens_at: float, closes: float
    ) -> tuple[SignedRoster, Roster]:
        context, key, failed = self._context, seeking.join.key, []
        peers = dict(context.peer_table.peers)
        for leader in self._order(key):
            if context.clock.now() >= closes:
                failed.append("the window closed")
                break
            try:
                if leader == context.terms.me:
                    return await self._lead(seeking, opens_at, closes)
                return await self._ask_leader(peers[leader], seeking.join, closes)
            except ExchangeError as error:
                failed.append(f"{leader[-6:]}: {error}")
                if isinstance(error, PartnerLost):
                    context.reputation.penalize(leader, Code.LOST, str(error))
        raise NoRoster("; ".join(failed)[:300] or "nobody who could lead is there")

    # -- asking leaders ----------------------------------------------------------------------------------------------

    async def _ask_leader(self, leader: PeerRecord, join: Join, closes: float) -> tuple[SignedRoster, Roster]:
        """Ask one leader for the roster until it answers or the window closes. Raises ExchangeError if it gives
        none."""
        clock, began = self._context.clock, self._context.clock.now()
        wait_s = min(max((closes - began) / 8, LEAST_POLL_S), MOST_POLL_S)
        by = began + (closes - began) / 2
        asked = Join(join.key, join.base, join.reach, wait_s, join.vouchers)
        silent_s = min(max((closes - began) / 4, LEAST_SILENT_S), MOST_SILENT_S)
        while (now := clock.now()) < closes + 2 * wait_s:
            reply = await self._join(leader, asked, silent_s)
            if reply.status is JoinStatus.ROSTER and reply.roster is not None:
                return reply.roster, self._opened(leader.peer_id, reply.roster, join)
            if reply.status is not JoinStatus.WAIT:
                raise PartnerRefused(Code.NO_ROSTER, reply.reason or "it leads no roster")
            if not reply.collecting and clock.now() > by:
                raise PartnerSilent("it did not come to the round")
            if clock.now() - now < wait_s / 2:  # it answered at once instead of holding the call: do not flood it
                await clock.sleep(wait_s / 2)
        raise PartnerSilent("the window closed and it gave no roster")

    async def _join(self, leader: PeerRecord, asked: Join, silent_s: float) -> JoinReply:
        """Make one call to a leader, and report its outcome to the failure detector. A call that the leader held for
        the full time also measures the round trip."""
        context, peer = self._context, leader.peer_id
        detector, began = context.peer_table.detector, context.clock.now()
        try:
            slack = max(silent_s, detector.timeout(peer))
            reply = await context.transport.join_round(leader, asked, asked.wait_s + slack)
        except PartnerLost as error:
            after_s = context.clock.now() - began - asked.wait_s
            detector.lost(peer, "it did not answer as a leader", error, after_s)
            raise
        if (way_s := context.clock.now() - began - asked.wait_s) >= 0:
            detector.answered(peer, way_s)
        else:
            detector.heard(peer, "it answered")
        return reply

    def _opened(self, giver: PeerId, signed: SignedRoster, join: Join) -> Roster:
        """Check a roster that a peer gave us. A false one is an offence of that peer. Raises BadPayload or
        PartnerRefused."""
        try:
            roster = parse_roster(signed.raw)
            self._check(roster, signed, join)
        except BadPayload as error:
            self._context.reputation.penalize(giver, error.code, error.reason)
            raise
        if roster.leader != giver and roster.leader not in self._context.live():
            raise PartnerRefused(Code.NO_ROSTER, "its roster is by a leader that we do not see")
        return roster

    def _check(self, roster: Roster, signed: SignedRoster, join: Join) -> None:
        context = self._context
        if not context.signer.verify(roster.leader, signed.raw, signed.signature):
            raise BadPayload(Code.ROSTER, f"the roster is not signed by {roster.leader}")
        if roster.run_id != context.terms.run_id or roster.key != join.key:
            raise BadPayload(Code.ROSTER, "the roster is of another run or round")
        if len(roster.members) > context.terms.max_group:
            raise BadPayload(
                Code.ROSTER, f"{len(roster.members)} members; at most {context.terms.max_group} are allowed"
            )
        if context.terms.me in roster.members and roster.base != join.base:
            raise BadPayload(Code.ROSTER, "the roster says that we build on a state that we do not have")

    # -- leading -----------------------------------------------------------------------------------------------------

    async def _lead(self, seeking: RendezvousRound, opens_at: float, closes: float) -> tuple[SignedRoster, Roster]:
        """Collect members and close the roster. Raises NoRoster if too few have joined by the end of the window."""
        context, clock = self._context, self._context.clock
        builder = RosterBuilder(
            context.terms.run_id,
            seeking.join.key,
            context.terms.me,
            context.terms.max_group,
            self.grace.seconds(2 * (closes - opens_at)),  # the window is a quarter of the round, twice
            closes,
            self._enough(seeking.join.key),
            self._quorums[seeking.join.key.fragment].remembers,
        )
        seeking.start_collecting(builder)
        builder.on_join(context.terms.me, seeking.join, clock.now())
        self._changed.notify_all()
        while (roster := builder.closed(context.live(), now := clock.now())) is None:
            if builder.hopeless(context.live(), now):
                if (roster := builder.rally()) is not None:
                    return self._signed(roster)
                if now >= closes:
                    raise NoRoster(f"{builder.joined} came in time, too few for a roster")
            await self._changed.wait_for(min(builder.next_at() - now, LOOK_S))
        self.grace.observe(builder.last_slack())
        return self._signed(roster)

    def _signed(self, roster: Roster) -> tuple[SignedRoster, Roster]:
        raw = roster.to_bytes()
        return SignedRoster(raw, self._context.signer.sign(raw)), roster

    def _enough(self, key: RoundKey) -> Callable[[Base, Collection[PeerId]], bool]:
        """Return the function by which a leader decides whether enough peers have joined from one base."""
        quorum = self._quorums[key.fragment]
        return lambda base, peers: quorum.enough_for(base, key.round, peers, self._context.counted())

    # -- incoming calls ----------------------------------------------------------------------------------------------

    async def on_join(self, sender: PeerId, join: Join) -> JoinReply:
        """Answer a member that asks for the round's roster, within `join.wait_s`. Never raises."""
        self._context.peer_table.detector.heard(sender, "it asked for a roster")
        if why := self._context.refusal_reason(sender):
            return JoinReply(JoinStatus.NONE, reason=why)
        if join.key.round < self._first:
            return JoinReply(JoinStatus.NONE, reason=f"this peer takes part from round {self._first} on")
        if self._parked >= MAX_PARKED or join.key.fragment >= len(self._quorums):
            return JoinReply(JoinStatus.NONE, reason="too many wait here already, or there is no such fragment")
        self._parked += 1
        try:
            return await self._answer(sender, join)
        finally:
            self._parked -= 1

    async def _answer(self, sender: PeerId, join: Join) -> JoinReply:
        clock = self._context.clock
        until = clock.now() + join.wait_s
        while True:
            now, seeking = clock.now(), self._rounds.get(join.key)
            if seeking is None and self._latest is not None and join.key <= self._latest:
                return JoinReply(JoinStatus.NONE, reason="past that round")
            if seeking is not None:
                self._add_member(sender, join, seeking, now)
                if seeking.signed is not None:
                    return JoinReply(JoinStatus.ROSTER, seeking.signed)
                if seeking.over:
                    return JoinReply(JoinStatus.NONE, reason=seeking.over)
            if now >= until:
                return JoinReply(JoinStatus.WAIT, collecting=seeking is not None and seeking.builder is not None)
            await self._changed.wait_for(until - now)

    def _add_member(self, sender: PeerId, join: Join, seeking: RendezvousRound, now: float) -> None:
        """Add the member to the roster that we collect. If the roster is closed already, learn from the delay how long
        to wait in the next round."""
        builder = seeking.builder
        if builder is None or builder.has(sender):
            return
        if seeking.ended and (slack := builder.slack(now)) is not None:
            self.grace.observe(slack)
        self._compare(sender, join, seeking)
        builder.on_join(sender, join, now)
        self._changed.notify_all()

    def _compare(self, sender: PeerId, join: Join, seeking: RendezvousRound) -> None:
        """Penalize an owner that signed different results for this member and for us. After such results the member's
        state differs from ours, and one of us has to fetch the other's state."""
        context, ours = self._context, seeking.join.vouchers
        for owner, shard in contradictions(ours, join.vouchers, seeking.owners, context.signer.verify):
            reason = f"gave {sender} and this peer different results of shard {shard} in the round before"
            context.reputation.penalize(owner, Code.TWO_RESULTS, f"{reason}, and signed both")
