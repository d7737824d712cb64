"""Members of a group that are absent for a moment, in virtual time: the effect on the others, and the way back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from peer.errors import PartnerSilent, Stale
from peer.exchange.group.member import GroupMean
from peer.lab.sim.links import Link
from peer.lab.sim.virtual_clock import EPOCH
from peer.protocol.messages import RoundKey
from tests.simulation.test_groups import ELEMENTS, ROUND_S, Member, Party, virtual

SOON_S = 2.0
"""Time limit of a round in which no member is waited for."""
WINDOW_S = 10.0


def used_to_each_other(party: Party) -> None:
    """Set each member's `Grace` as if it had seen all members join within 0.1 s."""
    for member in party.members:
        member.group._rendezvous.grace.observe(0.1)


def due(round_: int) -> float:
    return EPOCH + round_ * ROUND_S


def others_of(party: Party, member: Member) -> list[Member]:
    return [other for other in party.members if other is not member]


def cut(party: Party, one: Member, others: Sequence[Member]) -> None:
    for other in others:
        party.network.cut(one.me, other.me)


async def sounded(members: Sequence[Member], round_: int) -> None:
    """Let these members probe the leaders of the round, before it is due."""
    async with asyncio.TaskGroup() as sounding:
        for member in members:
            sounding.create_task(member.group.probe_leaders(RoundKey(round_, 0), due(round_) - WINDOW_S, due(round_)))
    assert members[0].clock.now() < due(round_)


async def seconds_of(party: Party, round_: int, who: Sequence[Member]) -> float:
    """Play a round of these members. Return the seconds from its due moment to its end."""
    await party.play(round_, who)
    return who[0].clock.now() - due(round_)


@virtual
async def test_a_leader_that_is_silent_before_the_round_costs_none_of_its_window() -> None:
    party = Party(5)
    await party.play(0)
    used_to_each_other(party)
    silent = party.leader(1)
    others = others_of(party, silent)
    cut(party, silent, others)
    await sounded(others, 1)
    assert await seconds_of(party, 1, others) < SOON_S
    assert all(len(member.got(1).members) == 4 for member in others)
    silent = party.leader(2)
    assert silent in others, "for the comparison below another one has to lead"
    rest = others_of(party, silent)
    cut(party, silent, rest)
    assert await seconds_of(party, 2, [member for member in rest if member in others]) > SOON_S, "without being asked"


@virtual
async def test_who_hears_of_nobody_suspects_its_own_link_and_not_the_leaders() -> None:
    party = Party(5)
    await party.play(0)
    away = next(member for member in party.members if member is not party.leader(1))
    cut(party, away, others_of(party, away))
    await sounded([away], 1)
    for other in others_of(party, away):
        party.network.mend(away.me, other.me)
    await party.play(1)
    assert all(len(member.got(1).members) == 5 for member in party.members)


@virtual
async def test_whose_link_to_the_leader_was_bad_for_a_moment_is_in_the_roster_all_the_same() -> None:
    party = Party(5)
    await party.play(0)
    leader = party.leader(1)
    one = others_of(party, leader)[0]
    cut(party, one, [leader])
    await sounded(party.members, 1)
    party.network.mend(one.me, leader.me)
    await party.play(1)
    assert all(len(member.got(1).members) == 5 for member in party.members)
    assert len(party.digests()) == 1


@virtual
async def test_who_takes_part_later_is_not_waited_for_as_a_leader() -> None:
    party = Party(5)
    await party.play(0)
    used_to_each_other(party)
    later = party.leader(1)
    later.group.start_at(3)
    others = others_of(party, later)
    assert await seconds_of(party, 1, others) < SOON_S
    assert all(isinstance(member.results[1], GroupMean) for member in others)


@virtual
async def test_a_round_that_is_given_up_gives_what_is_there() -> None:
    """The result contains all shards but that of an owner that is isolated when the roster is closed, and it comes in
    time."""
    party = Party(5)
    party.network.link = Link("slow", 20e3, 20e3, 0.02)
    await party.play(0)
    gone = next(member for member in party.members if member is not party.leader(1))
    others = others_of(party, gone)

    async def cut_off() -> None:
        await asyncio.sleep(due(1) + 0.4 - gone.clock.now())
        cut(party, gone, others)

    async def exchange(member: Member, number: int) -> GroupMean:
        key, own = RoundKey(1, 0), member.outer.digest(0)
        await member.clock.sleep(due(1) - member.clock.now())
        return await member.group.exchange(
            key, party.gradient(number, 1), own, 100, due(1) - WINDOW_S, due(1) + WINDOW_S, due(1) + 4.0
        )

    async with asyncio.TaskGroup() as playing:
        playing.create_task(cut_off())
        lost = playing.create_task(exchange(gone, party.members.index(gone)))
        tasks = [playing.create_task(exchange(member, party.members.index(member))) for member in others]
    assert others[0].clock.now() <= due(1) + 5.0
    for task in tasks:
        got = task.result()
        assert 0 < ELEMENTS - sum(end - start for start, end in got.spans) <= 640, got.spans
        assert gone.me in got.reason
    assert lost.result().spans == [], "alone it makes nothing"


@virtual
async def test_who_missed_a_round_knows_and_is_back_before_the_next_whoever_is_silent() -> None:
    party = Party(5)
    await party.play(0)
    away, silent = party.members[0], party.members[4]
    here = others_of(party, away)
    await party.play(1, here)
    assert [member.group.up_to_date(RoundKey(2, 0)) for member in (away, *here)] == [False, True, True, True, True]
    cut(party, silent, others_of(party, silent))
    began = away.clock.now()
    values = await away.group.catch_up(RoundKey(2, 0), None, away.outer.digest(0), settle_s=0.0)
    assert away.clock.now() - began < 1.5, "who is silent is not waited for"
    assert values is not None
    away.outer.put(0, *values)
    away.group.set_state_digest(0, away.outer.digest(0))
    assert away.group.up_to_date(RoundKey(2, 0))
    assert len(party.digests()) == 1
    party.network.heal()
    party.network._cut.clear()
    await party.play(2)
    assert all(len(member.got(2).members) == 5 for member in party.members)


@virtual
async def test_who_lacks_a_shard_is_not_up_to_date_until_it_has_it() -> None:
    party = Party(3)
    await party.play(0)
    one, other = party.members[0], party.members[1]
    failed = one.transport.contribute

    async def lost(*call: object) -> object:
        raise PartnerSilent("nothing comes")

    one.transport.contribute = lost  # type: ignore[method-assign,assignment]
    await party.play(1)
    assert one.got(1).spans != [(0, ELEMENTS)]
    assert not one.group.up_to_date(RoundKey(2, 0))
    assert other.group.up_to_date(RoundKey(2, 0)) == (other.got(1).spans == [(0, ELEMENTS)])
    one.transport.contribute = failed  # type: ignore[method-assign]
    values = await one.group.catch_up(RoundKey(2, 0), None, one.outer.digest(0), settle_s=0.0)
    assert values is not None
    one.outer.put(0, *values)
    one.group.set_state_digest(0, one.outer.digest(0))
    assert one.group.up_to_date(RoundKey(2, 0))
    assert len(party.digests()) == 1


async def play_without_effect(party: Party, had: Sequence[Member], missed: Sequence[Member]) -> None:
    """Play round 1, whose result the second members never apply."""

    async def miss(member: Member) -> None:
        await member.clock.sleep(due(1) - member.clock.now())
        gradient, digest = party.gradient(0, 1), member.outer.digest(0)
        await member.group.exchange(RoundKey(1, 0), gradient, digest, 100, due(1) - WINDOW_S, due(1) + WINDOW_S)

    async with asyncio.TaskGroup() as playing:
        playing.create_task(party.play(1, had))
        for member in missed:
            playing.create_task(miss(member))


@virtual
async def test_a_group_that_is_split_over_two_states_goes_on_from_the_later_one() -> None:
    """A round's result reaches two of its six members, and one of the others disappears afterwards. The members of that
    round may continue from the old state only with more than half of the six, which are no longer present."""
    party = Party(8)
    await party.play(0)
    had, missed, absent = party.members[2:4], party.members[:2] + party.members[4:6], party.members[6:]

    await play_without_effect(party, had, missed)
    later = had[0].outer.digest(0)
    assert party.digests(had) == {later}
    assert party.digests([*missed, *absent]) != {later}
    gone, here = missed[0], [*had, *missed[1:], *absent]
    for member in here:
        member.eyes.known.pop(gone.me)
    for round_ in range(2, 8):
        await party.play(round_, here)
        for member in here:
            if isinstance(member.results[round_], Stale):
                await member.catch_up(round_)
    assert len(party.digests(here)) == 1
    assert len(here[0].got(7).members) == 7


async def states_after_all(party: Party, had: Sequence[Member], *, at_last: bool) -> set[bytes]:
    """Return the state of each member once they have asked each other again, if the last round reached only some of
    them."""
    await party.play(0)
    await play_without_effect(party, had, [member for member in party.members if member not in had])
    for member in party.members:
        own = member.outer.digest(0)
        values = await member.group.catch_up(RoundKey(0, 0), None, own, settle_s=0.0, at_last=at_last)
        if values is not None:
            member.outer.put(0, *values)
        member.group.set_state_digest(0, member.outer.digest(0))
    return party.digests()


@virtual
async def test_at_the_end_all_have_what_most_have() -> None:
    party = Party(5)
    assert len(await states_after_all(party, party.members[:2], at_last=True)) == 1
    assert [(held and held.since) for held in (member.group.on_held(0) for member in party.members)] == [0] * 5


@virtual
async def test_at_the_end_those_that_do_not_answer_count_too() -> None:
    party = Party(5)
    one, missed = party.members[0], party.members[2:]
    await party.play(0)
    await play_without_effect(party, party.members[:2], missed)
    cut(party, one, missed[:1])
    own = one.outer.digest(0)
    assert await one.group.catch_up(RoundKey(0, 0), None, own, settle_s=0.0, at_last=True) is None
    assert one.outer.digest(0) == own


@virtual
async def test_at_the_end_of_two_halves_both_have_the_later_state() -> None:
    party = Party(4)
    assert len(await states_after_all(party, party.members[:2], at_last=True)) == 1
    assert [(held and held.since) for held in (member.group.on_held(0) for member in party.members)] == [1] * 4


@virtual
async def test_before_the_end_nobody_goes_back_to_an_earlier_state() -> None:
    party = Party(5)
    assert len(await states_after_all(party, party.members[:2], at_last=False)) == 2


@virtual
async def test_who_catches_up_is_done_before_the_fragment_is_due_again() -> None:
    party = Party(4)
    await party.play(0)
    await party.play(1, party.members[1:])
    stale = party.members[0]
    await party.play(2)
    error = stale.results[2]
    assert isinstance(error, Stale)
    held = [member.group.on_held for member in party.members[1:]]
    before = [ask(0) for ask in held]
    for member, base in zip(party.members[1:], before, strict=True):
        assert base is not None
        earlier = replace(base, since=1)  # the base as if the round had given no result
        member.group.on_held = lambda fragment, earlier=earlier: earlier  # type: ignore[misc]
    until = stale.clock.now() + 6.0
    own = stale.outer.digest(0)
    assert await stale.group.catch_up(RoundKey(2, 0), error.roster, own, until=until) is not None  # type: ignore[arg-type]
    assert stale.clock.now() < until
