"""Groups in virtual time over the in-memory network: there is one group state, whichever members die, lie, come late or
are isolated."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from peer.aio.threads import inline
from peer.codec.registry import EVERY
from peer.errors import ExchangeError, NoRoster, Stale
from peer.exchange.group.context import GroupContext, GroupTerms
from peer.exchange.group.mean_terms import MeanTerms
from peer.exchange.group.member import GroupMean, GroupMember
from peer.exchange.group.sparse_result import SparseResult
from peer.identity import Identity
from peer.lab.sim.links import Link
from peer.lab.sim.memory_transport import MemoryTransport
from peer.lab.sim.network import Network
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.membership.failure_detector import FailureDetector
from peer.membership.reputation import Reputation
from peer.methods.codec_specs import SPARSE
from peer.methods.registry import PRESETS
from peer.outer.state import OuterState
from peer.outer.values import MeanGradient
from peer.protocol.group.roster import Join, JoinReply, JoinStatus, SignedRoster, leaders, parse_roster
from peer.protocol.group.shards import cut
from peer.protocol.messages import FRAGMENT_PREFIX, SHARD_PREFIX, PeerId, PeerRecord, Reach, RoundKey, RunId, Status
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.wire.payload import BytesSource, Source
from peer.state.transfer.fragment import FragmentServer
from peer.transport.signing import KeySigner
from tests.support.seeds import seeds

RUN = RunId(b"G" * 32)
ELEMENTS = 3000
ROUND_S = 40.0


def identities(count: int) -> list[Identity]:
    """Return identities that are the same in each run."""
    keys = [Identity(Ed25519PrivateKey.from_private_bytes(bytes([number + 1]) * 32)) for number in range(count)]
    return sorted(keys, key=lambda one: one.peer_id)


@dataclass
class Eyes:
    """The set of members that one member sees."""

    known: dict[PeerId, PeerRecord] = field(default_factory=dict)
    banned: Callable[[], Container[PeerId]] = frozenset
    reachable: bool = True
    detector: FailureDetector = field(default_factory=lambda: FailureDetector(lambda: 0.0))

    @property
    def peers(self) -> dict[PeerId, PeerRecord]:
        return self.known

    def own_reach(self) -> Reach:
        return Reach.DIRECT if self.reachable else Reach.NONE

    def relay_rate(self) -> float:
        return 0.0


class Member:
    """A peer of a test: a group, a state, and a handler for the calls of others."""

    def __init__(self, identity: Identity, network: Network, codec: str, result: str, elements: int) -> None:
        self.me = PeerId(identity.peer_id)
        self.eyes = Eyes()
        self.clock = VirtualClock()
        layout = Layout.whole([TensorSpec("w", (elements,))])
        self.outer = OuterState.fresh(layout, torch.zeros(elements))
        self.events: list[Any] = []
        self.reputation = Reputation(self.clock.now, self.events.append)
        self.transport = MemoryTransport(network, self.me, self, self.clock)
        terms = GroupTerms(
            run_id=RUN,
            me=self.me,
            elements=(elements,),
            mean=MeanTerms(
                codec=EVERY[codec], result_codec=SparseResult(EVERY[codec]) if result == SPARSE else EVERY[result]
            ),
            max_group=16,
        )
        signer, transport = KeySigner(identity), self.transport
        context = GroupContext(terms, signer, transport, self.clock, self.eyes, self.reputation, inline)
        self.group = GroupMember(context)
        self.group.set_state_digest(0, self.outer.digest(0))
        self._shelf = FragmentServer(self.outer, lambda fragment: (self.group.on_held(fragment) or _Nothing).digest)
        self.results: dict[int, GroupMean | ExchangeError] = {}

    def on_piece(self, snapshot: str, piece: int) -> memoryview | None:
        if snapshot.startswith(SHARD_PREFIX):
            return self.group.on_shown(snapshot, piece)
        assert snapshot.startswith(FRAGMENT_PREFIX)
        return self._shelf.on_piece(snapshot, piece)

    async def round(self, number: int, gradient: Tensor, tokens: int = 100, late_s: float = 0.0) -> None:
        """Run one round in the way of the round loop."""
        due = EPOCH + number * ROUND_S
        await self.clock.sleep(due + late_s - self.clock.now())
        key = RoundKey(number, 0)
        try:
            got = await self.group.exchange(key, gradient, self.outer.digest(0), tokens, due - 10, due + 10)
        except ExchangeError as error:
            self.results[number] = error
            return
        self.results[number] = got
        mean = got.mean.clone()
        self.outer.step_with(0, MeanGradient(mean, got.spans), PRESETS["diloco"].method)
        self.group.set_state_digest(0, self.outer.digest(0))

    async def catch_up(self, number: int) -> None:
        """Catch up after a round in which this member was stale."""
        error = self.results[number]
        assert isinstance(error, Stale)
        values = await self.group.catch_up(RoundKey(number, 0), error.roster, self.outer.digest(0))  # type: ignore[arg-type]
        if values is not None:
            self.outer.params.copy_(values[0])
            self.outer.momentum.copy_(values[1])
        self.group.set_state_digest(0, self.outer.digest(0))

    def got(self, number: int) -> GroupMean:
        result = self.results[number]
        assert isinstance(result, GroupMean), result
        return result


class _Nothing:
    digest = b""


class Party:
    """The members of a group, all of which see each other."""

    def __init__(
        self, count: int, codec: str = "fp32", result: str = "fp32", seed: int = 0, elements: int = ELEMENTS
    ) -> None:
        print(f"seed {seed}")
        self.network = Network(rng=random.Random(seed))
        self.elements = elements
        self.members = [Member(identity, self.network, codec, result, elements) for identity in identities(count)]
        self.seed = seed
        for member in self.members:
            self.see(member, self.members)

    def see(self, member: Member, others: Sequence[Member]) -> None:
        member.eyes.known = {other.me: _record(other) for other in others if other is not member}

    def gradient(self, number: int, round_: int = 0) -> Tensor:
        maker = torch.Generator().manual_seed(1000 * self.seed + 100 * round_ + number)
        return torch.randn(self.elements, generator=maker) * 0.01

    async def play(
        self, round_: int, who: Sequence[Member] | None = None, late: dict[int, float] | None = None
    ) -> None:
        """Play one round of the members in `who`; None: all members. `late`: index of a member -> its delay in
        seconds."""
        async with asyncio.TaskGroup() as playing:
            for number, member in enumerate(self.members):
                if who is None or member in who:
                    gradient, late_s = self.gradient(number, round_), (late or {}).get(number, 0.0)
                    playing.create_task(member.round(round_, gradient, tokens_of(number), late_s))

    def leader(self, round_: int) -> Member:
        first = leaders(RUN, RoundKey(round_, 0), [member.me for member in self.members])[0]
        return next(member for member in self.members if member.me == first)

    def digests(self, who: Sequence[Member] | None = None) -> set[bytes]:
        return {member.outer.digest(0) for member in who or self.members}


def _record(member: Member) -> PeerRecord:
    reachable = member.eyes.reachable
    return PeerRecord(member.me, RUN, ("memory:0",), reachable, 1, 1, 0, 0.0, Status.TRAINING, EPOCH, EPOCH + 1e9)


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    def run() -> None:
        run_virtual(test())  # type: ignore[arg-type]

    run.__name__ = test.__name__
    return run


def tokens_of(number: int) -> int:
    """Return the number of tokens of a member. The numbers are similar enough that none exceeds the limits of
    `peer.outer.robust_mean`."""
    return 100 + 20 * number


def expected(party: Party, numbers: Sequence[int], round_: int = 0) -> Tensor:
    weights = [tokens_of(number) for number in numbers]
    parts = [party.gradient(n, round_).double() * w for n, w in zip(numbers, weights, strict=True)]
    return torch.stack(parts).sum(0) / sum(weights)


@virtual
async def test_all_apply_the_same_weighted_mean_bit_for_bit() -> None:
    party = Party(5)
    for round_ in range(3):
        await party.play(round_)
        means = [member.got(round_) for member in party.members]
        assert {blake3(got.mean.numpy().tobytes()).digest() for got in means} == {
            blake3(means[0].mean.numpy().tobytes()).digest()
        }
        assert all(got.spans == got.named == [(0, ELEMENTS)] for got in means)
        assert torch.allclose(means[0].mean.double(), expected(party, range(5), round_), rtol=0, atol=1e-8)
        assert len(party.digests()) == 1
    assert not any(member.events for member in party.members)


@virtual
async def test_a_few_bits_up_and_half_precision_back_leave_all_with_the_same_bits() -> None:
    party = Party(4, "int4", "fp16")
    await party.play(0)
    assert len(party.digests()) == 1
    off = (party.members[0].got(0).mean.double() - expected(party, range(4))).norm()
    assert off < 0.15 * expected(party, range(4)).norm()


@virtual
async def test_what_owners_send_and_receive_counts_as_well() -> None:
    party = Party(4, "int4", "fp16")
    await party.play(0)
    reports = [member.got(0).report for member in party.members]
    shards = cut(b"any", [member.me for member in party.members], ELEMENTS)
    each = sum(EVERY["int4"].nbytes(shard.elements) + EVERY["fp16"].nbytes(shard.elements) for shard in shards)
    assert sum(report.bytes_sent for report in reports) == 3 * each
    assert sum(report.bytes_received for report in reports) == 3 * each


@virtual
async def test_a_peer_alone_is_a_group_of_one() -> None:
    party = Party(1)
    await party.play(0)
    assert torch.equal(party.members[0].got(0).mean, party.gradient(0))


@virtual
async def test_a_dead_owner_costs_its_shard_one_round() -> None:
    party = Party(5)
    party.network.link = Link("slow", 20e3, 20e3, 0.02)
    await party.play(0)
    dead = next(member for member in party.members if member is not party.leader(1))

    async def kill() -> None:
        await asyncio.sleep(
            EPOCH + ROUND_S + 0.4 - dead.clock.now()
        )  # the roster is closed, and contributions are being sent
        task.cancel()
        party.network.kill(dead.me)

    index = party.members.index(dead)
    task = asyncio.create_task(dead.round(1, party.gradient(index, 1)))
    killing = asyncio.create_task(kill())
    others = [member for member in party.members if member is not dead]
    await party.play(1, others)
    await killing
    for member in others:
        got = member.got(1)
        missing = ELEMENTS - sum(end - start for start, end in got.spans)
        assert 0 < missing <= 640, got.spans
        assert dead.me in got.reason
        assert got.named == got.spans
    assert len(party.digests(others)) == 1
    for member in others:
        member.eyes.known.pop(dead.me)
    await party.play(2, others)
    assert len(party.digests(others)) == 1
    assert all(member.got(2).spans == [(0, ELEMENTS)] for member in others)


@virtual
async def test_a_silent_leader_is_passed_over() -> None:
    party = Party(5)
    await party.play(0)
    silent = party.leader(1)
    others = [member for member in party.members if member is not silent]
    for other in others:
        party.network.cut(silent.me, other.me)
    began = others[0].clock.now()
    await party.play(1, others)
    assert len(party.digests(others)) == 1
    assert all(silent.me not in member.got(1).members for member in others)
    assert others[0].clock.now() - began < 2 * ROUND_S


@virtual
async def test_a_leader_that_comes_too_late_is_passed_over() -> None:
    party = Party(5)
    await party.play(0)
    late = party.leader(1)
    await party.play(1, late={party.members.index(late): 25.0})
    others = [member for member in party.members if member is not late]
    assert all(isinstance(member.results[1], GroupMean) for member in others)
    assert len(party.digests(others)) == 1
    assert isinstance(late.results[1], NoRoster)


@virtual
async def test_halves_cut_off_from_each_other_the_smaller_one_gets_nothing() -> None:
    party = Party(5)
    await party.play(0)
    small, large = party.members[:2], party.members[2:]
    party.network.partition([m.me for m in small], [m.me for m in large])
    before = small[0].outer.digest(0)
    await party.play(1)
    assert all(isinstance(member.results[1], NoRoster) for member in small)
    assert all(isinstance(member.results[1], GroupMean) for member in large)
    assert party.digests(small) == {before}
    assert len(party.digests(large)) == 1
    party.network.heal()
    await party.play(2)
    for member in small:
        await member.catch_up(2)
    assert len(party.digests()) == 1
    await party.play(3)
    assert len(party.digests()) == 1
    assert len(party.members[0].got(3).members) == 5


@virtual
async def test_two_even_halves_both_get_nothing() -> None:
    party = Party(4)
    await party.play(0)
    party.network.partition([m.me for m in party.members[:2]], [m.me for m in party.members[2:]])
    before = party.digests()
    await party.play(1)
    assert all(isinstance(member.results[1], NoRoster) for member in party.members)
    assert party.digests() == before
    assert len(before) == 1


@virtual
async def test_a_stale_member_is_refused_and_catches_up() -> None:
    party = Party(4)
    await party.play(0)
    away, here = party.members[3], party.members[:3]
    await party.play(1, here)
    await party.play(2)
    assert isinstance(away.results[2], Stale)
    assert all(away.me not in member.got(2).members for member in here)
    await away.catch_up(2)
    assert len(party.digests()) == 1
    assert torch.equal(away.outer.momentum, here[0].outer.momentum)
    await party.play(3)
    assert len(away.got(3).members) == 4


@virtual
async def test_a_newcomer_with_another_state_comes_in_by_the_same_path() -> None:
    party = Party(4)
    newcomer, here = party.members[0], party.members[1:]
    for member in here:
        member.eyes.known.pop(newcomer.me)
    await party.play(0, here)
    await party.play(1, here)
    for member in party.members:
        party.see(member, party.members)
    newcomer.outer.params.fill_(0.5)
    values = await newcomer.group.catch_up(RoundKey(1, 0), None, newcomer.outer.digest(0))
    assert values is not None
    newcomer.outer.params.copy_(values[0])
    newcomer.outer.momentum.copy_(values[1])
    assert len(party.digests()) == 1
    await party.play(2)
    assert len(newcomer.got(2).members) == 4


@virtual
async def test_newcomers_cannot_outvote_a_member_that_knows_the_group() -> None:
    """Three fresh peers and one member of a roster of two: none may continue from the state of the fresh peers."""
    party = Party(5)
    old, fresh = party.members[:2], party.members[2:]
    for member in old:
        party.see(member, old)
    await party.play(0, old)
    for member in party.members:
        party.see(member, party.members)
    together = [old[0], *fresh]
    await party.play(1, together)
    assert not any(isinstance(member.results[1], GroupMean) for member in together), "one of two electors is too few"


@virtual
async def test_who_is_late_is_not_in_the_roster_and_not_in_the_mean() -> None:
    party = Party(5)
    await party.play(0)
    late = next(member for member in party.members if member is not party.leader(1))
    number = party.members.index(late)
    await party.play(1, late={number: 15.0})
    others = [member for member in party.members if member is not late]
    assert isinstance(late.results[1], NoRoster)
    rest = [n for n in range(5) if n != number]
    assert torch.allclose(others[0].got(1).mean.double(), expected(party, rest, 1), rtol=0, atol=1e-8)
    assert len(party.digests(others)) == 1


@virtual
async def test_a_cancelled_exchange_leaves_nothing_running_and_costs_the_others_a_shard() -> None:
    party = Party(4)
    party.network.link = Link("slow", 20e3, 20e3, 0.02)
    others, leaver = party.members[:3], party.members[3]
    leaving = asyncio.create_task(leaver.round(0, party.gradient(3)))
    playing = asyncio.create_task(party.play(0, others))
    await asyncio.sleep(EPOCH + 0.3 - leaver.clock.now())
    leaving.cancel()
    await asyncio.wait({leaving})
    await playing
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert all(0 < sum(end - start for start, end in member.got(0).spans) < ELEMENTS for member in others)
    assert all("gave the round up" in member.got(0).reason for member in others)
    assert len(party.digests(others)) == 1


@virtual
async def test_a_result_that_was_not_applied_makes_no_electors() -> None:
    party = Party(3)
    member = party.members[0]
    await party.play(0)
    assert member.group.on_held(0) is not None
    before = member.group.on_held(0)
    due = EPOCH + ROUND_S
    playing = asyncio.create_task(party.play(1, party.members[1:]))
    await member.clock.sleep(due - member.clock.now())
    got = await member.group.exchange(
        RoundKey(1, 0), party.gradient(0, 1), member.outer.digest(0), 100, due - 10, due + 10
    )
    assert got.spans == [(0, ELEMENTS)]
    assert member.group.on_held(0) == before, "the old state with its old electors until the step is done"
    await playing
    after = party.members[1].group.on_held(0)
    assert after is not None
    assert after.since == 1
    await party.play(2)
    assert isinstance(member.results[2], Stale)


@virtual
async def test_a_broken_stream_is_taken_up_again() -> None:
    party = Party(3)
    party.network.link = Link("slow", 20e3, 20e3, 0.02)
    one, other = party.members[0], party.members[1]

    async def hiccup() -> None:
        await asyncio.sleep(EPOCH + 0.3 - one.clock.now())
        party.network.cut(one.me, other.me)
        await asyncio.sleep(7)  # longer than the limit of silence, shorter than the round
        party.network.mend(one.me, other.me)

    cutting = asyncio.create_task(hiccup())
    await party.play(0)
    await cutting
    for member in party.members:
        assert member.got(0).spans == [(0, ELEMENTS)], member.got(0).reason
    assert len(party.digests()) == 1


@pytest.mark.parametrize("members", [3, 4, 6])
@pytest.mark.parametrize("deaf", [1, 2, 5], ids="{} do not hear it".format)
def test_a_leader_that_was_only_busy_for_a_moment_costs_nobody_the_round(members: int, deaf: int) -> None:
    """The leader did not answer a call before the round. So the members first ask other members, or lead themselves."""

    async def main() -> None:
        party, key = Party(members), RoundKey(0, 0)
        leader = party.leader(0)
        for member in [member for member in party.members if member is not leader][:deaf]:
            member.group._rendezvous._silent = key, frozenset({leader.me})
        await party.play(0)
        for member in party.members:
            assert member.got(0).spans == [(0, ELEMENTS)], member.got(0).reason
            assert set(member.got(0).members) == {other.me for other in party.members}
        assert len(party.digests()) == 1

    run_virtual(main())


# -- members that lie --------------------------------------------------------------------------------------------------


class Crooked(BytesSource):
    """A source whose payload was modified."""


def nan_at_the_start(source: Source) -> Source:
    data = bytearray(source.read(0, source.nbytes))
    data[:4] = b"\x00\x00\xc0\x7f"
    return Crooked(bytes(data))


def longer(source: Source) -> Source:
    return Crooked(source.read(0, source.nbytes) + b"1234")


def huge(source: Source) -> Source:
    values = torch.frombuffer(bytearray(source.read(0, source.nbytes)), dtype=torch.float32) * 1000
    return Crooked(values.numpy().tobytes())


@pytest.mark.parametrize(("lie", "code"), [(nan_at_the_start, "not_finite"), (longer, ""), (huge, "signature")])
def test_a_lying_contributor_is_left_out(lie: Callable[[Source], Source], code: str) -> None:
    async def main() -> None:
        party = Party(5)
        liar = party.members[2]
        contributed = []

        def tamper(sender: PeerId, source: Source) -> Source:
            if sender == liar.me and sender not in contributed[-1:] and len(contributed) < 4:
                contributed.append(None)
                return lie(source)
            return source

        party.network.tamper = tamper
        await party.play(0)
        others = [member for member in party.members if member is not liar]
        assert len(party.digests(others)) == 1
        mean, rest = others[0].got(0).mean.double(), [0, 1, 3, 4]
        own = next(start for start, _ in others[0].got(0).spans)
        assert own == 0
        honest = (mean - expected(party, rest)).abs() < 1e-8
        assert 0.7 < honest.double().mean() < 1.0, "all shards but the liar's own are without it"
        if code:
            blamed = [event for member in others for event in member.events if getattr(event, "peer", "") == liar.me]
            assert {event.code for event in blamed} == {code}
            assert len(blamed) == 4

    run_virtual(main())


@virtual
async def test_a_part_that_no_work_explains_is_left_out() -> None:
    """A member signs a contribution that is 1,000 times too long. The others leave it out and record why."""
    party = Party(5)
    liar = party.members[2]
    honest = party.gradient
    party.gradient = lambda number, round_=0: honest(number, round_) * (1000 if number == 2 else 1)  # type: ignore[method-assign]
    await party.play(0)
    others = [member for member in party.members if member is not liar]
    assert len(party.digests(others)) == 1
    assert {(event.peer, event.code) for member in others for event in member.events} == {(liar.me, "norm")}
    assert all(len(member.events) == 1 for member in others)


def test_a_lying_owner_costs_its_shard() -> None:
    async def main() -> None:
        party = Party(4)
        liar = party.members[1]
        results: list[None] = []

        def tamper(sender: PeerId, source: Source) -> Source:
            if sender == liar.me:
                results.append(None)
                return nan_at_the_start(source) if len(results) > 3 else source
            return source

        party.network.tamper = tamper
        await party.play(0)
        for member in party.members:
            if member is not liar:
                assert "not_finite" in member.got(0).reason
                assert sum(end - start for start, end in member.got(0).spans) < ELEMENTS
                assert [event.code for event in member.events] == ["not_finite"]

    run_virtual(main())


@pytest.mark.parametrize("forgery", ["signature", "round", "base", "size", "garbage"])
def test_a_forged_roster_is_an_offence_and_the_next_one_leads(forgery: str) -> None:
    async def main() -> None:
        party = Party(4)
        await party.play(0)
        liar = party.leader(1)
        key = RoundKey(1, 0)
        honest = liar.group.on_join

        async def on_join(sender: PeerId, join: Join) -> JoinReply:
            reply = await honest(sender, join)
            if reply.roster is None:
                return reply
            return JoinReply(JoinStatus.ROSTER, _forged(forgery, liar, reply.roster, sender))

        liar.group.on_join = on_join  # type: ignore[method-assign]
        await party.play(1)
        others = [member for member in party.members if member is not liar]
        assert all(isinstance(member.results[1], GroupMean) for member in others), [m.results[1] for m in others]
        assert all(any(event.code == "roster" for event in member.events) for member in others)
        assert len(party.digests(others)) == 1
        assert key == RoundKey(1, 0)

    run_virtual(main())


def _forged(how: str, liar: Member, signed: SignedRoster, sender: PeerId) -> SignedRoster:
    from dataclasses import replace

    signer = liar.group._context.signer
    roster = parse_roster(signed.raw)
    if how == "signature":
        return SignedRoster(signed.raw, bytes(64))
    if how == "garbage":
        return SignedRoster(b"{}", signed.signature)
    if how == "round":
        roster = replace(roster, key=RoundKey(7, 0))
    elif how == "base":
        roster = replace(roster, base=replace(roster.base, digest=b"x" * 32))
    else:
        more = tuple(PeerId(f"x{number:02d}") for number in range(20))
        roster = replace(roster, members=tuple(sorted((*roster.members, *more))))
    return SignedRoster(roster.to_bytes(), signer.sign(roster.to_bytes()))


# -- whatever happens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(1, 6))
def test_never_two_truths_whatever_is_cut(seed: int) -> None:
    """Random partitions, cut links, late members and different views, before and during some rounds. In each round, all
    members with a result of a shard have the same bits, and after the repair all members return to one state."""

    async def main() -> None:
        rng = random.Random(seed)
        party = Party(6, seed=seed)
        party.network.link = Link("slow", 20e3, 20e3, 0.02)
        await party.play(0)
        for round_ in range(1, 7):
            due_s = EPOCH + round_ * ROUND_S - party.members[0].clock.now()
            disturbing = asyncio.create_task(_disturb(party, rng, due_s + rng.choice((0.0, 0.4, 2.0))))
            await party.play(round_, late={n: rng.uniform(0, 12) for n in range(6) if rng.random() < 0.4})
            await disturbing
            _one_truth(party, round_)
            await _catch_up(party, round_)
        party.network.heal()
        party.network._cut.clear()
        for member in party.members:
            party.see(member, party.members)
        for round_ in range(7, 11):
            await party.play(round_)
            _one_truth(party, round_)
            await _catch_up(party, round_)
        assert len(party.digests()) == 1
        assert len(party.members[0].got(10).members) == 6

    run_virtual(main())


async def _disturb(party: Party, rng: random.Random, after_s: float) -> None:
    """Disturb the members before the round, or in the middle of this one."""
    await asyncio.sleep(after_s)
    party.network.heal()
    party.network._cut.clear()
    ids = [member.me for member in party.members]
    if rng.random() < 0.5:
        rng.shuffle(ids)
        at = rng.randint(1, 5)
        party.network.partition(ids[:at], ids[at:])
    for one in ids:
        for other in ids:
            if one != other and rng.random() < 0.1:
                party.network.cut(one, other, both_ways=False)
    for member in party.members:
        party.see(member, [other for other in party.members if rng.random() < 0.9])


def _one_truth(party: Party, round_: int) -> None:
    bits: dict[tuple[int, int], set[bytes]] = {}
    for member in party.members:
        got = member.results.get(round_)
        if not isinstance(got, GroupMean):
            continue
        for start, end in got.spans:
            for at in range(start, end, 128):
                piece = got.mean[at : min(end, at + 128)].numpy().tobytes()
                bits.setdefault((at, min(end, at + 128)), set()).add(piece)
    assert all(len(values) == 1 for values in bits.values())


async def _catch_up(party: Party, round_: int) -> None:
    for member in party.members:
        if isinstance(member.results[round_], Stale):
            try:
                await member.catch_up(round_)
            except ExchangeError as error:
                print(f"round {round_}: {member.me[-6:]} {error}")
