"""An owner sends two members different results. The next leader gets proof, and one group state remains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peer.errors import Stale
from peer.lab.sim.virtual_clock import run_virtual
from peer.observe.events import StandingLowered
from peer.protocol.group.shards import ShardResult
from peer.protocol.messages import PeerId
from tests.simulation.test_groups import Member, Party


def lie(liar: Member, victim: PeerId, *, signed: bool) -> None:
    """Make this owner send `victim` different results from now on. `signed`: with its signature."""
    honest_desk = liar.group._make_reducer

    def desk_of(*terms: Any) -> Any:
        desk = honest_desk(*terms)
        assert desk is not None
        honest = desk.result_for

        async def result_for(sender: PeerId) -> ShardResult:
            result = await honest(sender)
            if sender != victim:
                return result
            other = bytes([result.payload[0] ^ 1]) + result.payload[1:]
            return await desk._signed(other, result.named) if signed else replace(result, payload=other)

        desk.result_for = result_for  # type: ignore[method-assign]
        return desk

    liar.group._make_reducer = desk_of  # type: ignore[method-assign]


def cast(party: Party, leads: bool) -> tuple[Member, Member, Member]:
    """Return the leader of round 1, the owner that lies in round 0, and its victim, which may be the leader."""
    leader = party.leader(1)
    others = [member for member in party.members if member is not leader]
    return leader, others[0], leader if leads else others[1]


@pytest.mark.parametrize("leads", [False, True], ids=["another leads", "the victim leads"])
def test_two_results_are_noticed_proved_and_mended(leads: bool) -> None:
    async def scenario() -> None:
        party = Party(5)
        leader, liar, victim = cast(party, leads)
        lie(liar, victim.me, signed=True)
        await party.play(0)
        assert len(party.digests()) == 2, "one bit of one shard"
        del liar.group._make_reducer  # type: ignore[attr-defined]  # honest again: once is enough

        await party.play(1)
        found = [event for event in leader.events if isinstance(event, StandingLowered)]
        assert {(event.peer, event.code) for event in found} == {(liar.me, "two_results")}
        assert victim.me in found[0].reason or leads
        assert found[0].out_s > 0
        blamed = {e.peer for member in party.members for e in member.events if isinstance(e, StandingLowered)}
        assert blamed == {liar.me}

        assert isinstance(victim.results[1], Stale)
        await victim.catch_up(1)
        honest = [member for member in party.members if member is not liar]
        assert len(party.digests(honest)) == 1
        await party.play(2, honest)
        assert all(member.got(2).spans == [(0, member.outer.params.numel())] for member in honest)
        assert len(party.digests(honest)) == 1

    run_virtual(scenario())


def test_a_result_that_its_owner_did_not_sign_costs_the_shard() -> None:
    async def scenario() -> None:
        party = Party(5)
        _, liar, victim = cast(party, leads=False)
        lie(liar, victim.me, signed=False)
        await party.play(0)
        got = victim.got(0)
        assert sum(end - start for start, end in got.spans) < victim.outer.params.numel()
        assert "did not sign" in got.reason
        assert [(e.peer, e.code) for e in victim.events if isinstance(e, StandingLowered)] == [(liar.me, "signature")]

    run_virtual(scenario())


def test_honest_owners_are_never_blamed() -> None:
    async def scenario() -> None:
        party = Party(5, "int4", "fp16")
        for round_ in range(3):
            await party.play(round_)
        assert not any(member.events for member in party.members)

    run_virtual(scenario())
