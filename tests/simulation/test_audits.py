"""Members recompute owners' means: a difference of one bit is proved, a suspicious result is checked at once, and no
honest member is blamed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest
from torch import Tensor

import peer.exchange.group.audit
from peer.exchange.group.proof import examine, parse_proof
from peer.lab.sim.virtual_clock import run_virtual
from peer.observe.events import StandingLowered
from tests.simulation.test_groups import ELEMENTS, RUN, Member, Party
from tests.support.lying_owner import owners_lie

AUDIT_S = 20.0


async def audit(members: Sequence[Member]) -> None:
    """Run the audits, as long as the members train for the next round."""
    with suppress(TimeoutError):
        async with asyncio.timeout(AUDIT_S), asyncio.TaskGroup() as auditing:
            for member in members:
                auditing.create_task(member.group.audit())


def blamed(member: Member) -> list[tuple[str, str]]:
    return [(event.peer, event.code) for event in member.events if isinstance(event, StandingLowered)]


def off_by_a_bit(mean: Tensor) -> Tensor:
    mean[0] = mean[0].nextafter(mean[0] + 1)
    return mean


@pytest.mark.parametrize(("count", "codec", "result"), [(5, "fp32", "fp32"), (3, "int4", "fp16")])
def test_a_lie_of_one_bit_is_proved_by_those_that_draw_it(
    count: int, codec: str, result: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer.exchange.group.audit, "CHANCE", 1.0)

    async def scenario() -> None:
        party = Party(count, codec, result)
        liar = party.members[1]
        lie = off_by_a_bit if result == "fp32" else (lambda mean: mean * 1.01)
        owners_lie(monkeypatch, {liar.me}, lie)
        finders, round_ = list[Member](), 0
        while not finders:
            await party.play(round_)
            assert len(party.digests()) == 1, "nobody can see it"
            await audit(party.members)
            finders, round_ = [member for member in party.members if blamed(member)], round_ + 1
            assert round_ < 10
        assert {code for member in finders for code in blamed(member)} == {(liar.me, "false_mean")}
        proof = finders[0].group.proofs[0]
        terms = party.members[0].group._context.terms
        signer = party.members[0].group._context.signer
        found = examine(parse_proof(proof.to_bytes()), RUN, terms.mean, (ELEMENTS,), signer.verify)
        assert (found.owner, found.guilty) == (liar.me, True)
        assert finders[0].group._context.refusal_reason(liar.me)

    run_virtual(scenario())


def test_what_is_doubted_is_made_again_without_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer.exchange.group.audit, "CHANCE", 0.0)

    async def scenario() -> None:
        party = Party(8)
        liar = party.members[1]
        honest = [member for member in party.members if member is not liar]
        owners_lie(monkeypatch, {liar.me}, lambda mean: mean * -10.0)
        await party.play(0)
        await audit(party.members)
        assert all(blamed(member) == [(liar.me, "false_mean")] for member in honest)
        await party.play(1)
        assert all(liar.me not in member.got(1).members for member in honest)
        assert all(member.got(1).spans == [(0, ELEMENTS)] for member in honest)

    run_virtual(scenario())


@pytest.mark.parametrize(("codec", "result"), [("fp32", "fp32"), ("int4", "fp16"), ("e3m0", "int8")])
def test_an_honest_owner_is_never_blamed(codec: str, result: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer.exchange.group.audit, "CHANCE", 1.0)

    async def scenario() -> None:
        party, asked = Party(5, codec, result), 0
        for round_ in range(3):
            await party.play(round_)
            asked += sum(len(member.group._auditor._due) for member in party.members)
            await audit(party.members)
            assert not any(member.group._auditor._due for member in party.members)
        assert asked == 3 * 5
        assert not any(member.events for member in party.members)

    run_virtual(scenario())


def test_an_owner_that_shows_nothing_is_not_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer.exchange.group.audit, "CHANCE", 1.0)

    async def scenario() -> None:
        party = Party(5)
        liar = party.members[1]
        owners_lie(monkeypatch, {liar.me}, off_by_a_bit)
        monkeypatch.setattr(liar.group, "on_shown", lambda name, piece: None)
        for round_ in range(2):
            await party.play(round_)
            await audit(party.members)
        assert not any(blamed(member) for member in party.members)

    run_virtual(scenario())
