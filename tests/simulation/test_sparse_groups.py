"""Groups with sparse results in virtual time: one group state, the promised number of bytes, and owners that forge
results."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from peer.codec.registry import EVERY
from peer.exchange.group.sparse_result import HEAD
from peer.lab.sim.virtual_clock import run_virtual
from peer.methods.codec_specs import SPARSE, is_relayed
from peer.observe.events import StandingLowered
from peer.outer.robust_mean import weighted_mean
from peer.protocol.group.shards import ShardResult
from peer.run.costs import exchange_bytes
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.simulation.test_groups import Member, Party, tokens_of

ELEMENTS = 96 * 4096
METHOD = resolve(SyncSection(preset="sparseloco"))


@pytest.mark.parametrize("count", [2, 8, 12])
def test_all_apply_the_same_bits_of_few_bytes(count: int) -> None:
    async def scenario() -> None:
        party = Party(count, METHOD.codec, METHOD.result_codec, elements=ELEMENTS)
        await party.play(0)
        means = [member.got(0) for member in party.members]
        assert all(got.spans == got.named == [(0, ELEMENTS)] for got in means)
        assert len({got.mean.numpy().tobytes() for got in means}) == 1
        codec = EVERY["topk"]
        parts = [codec.decode(codec.encode(party.gradient(number)), ELEMENTS) for number in range(count)]
        exact = weighted_mean(parts, [tokens_of(number) for number in range(count)])
        assert float((means[0].mean - exact).norm() / exact.norm()) < 0.01
        if is_relayed(ELEMENTS // count, count):
            assert torch.equal(means[0].mean, exact)
        due = exchange_bytes(METHOD, ELEMENTS, count)
        for got in means:
            assert got.report.bytes_sent == pytest.approx(due, rel=0.05)
            assert got.report.bytes_received == pytest.approx(due, rel=0.05)
            assert count > 8 or 8 * got.report.bytes_sent <= 2.5 * ELEMENTS
        assert not any(member.events for member in party.members)

    run_virtual(scenario())


def forge(owner: Member) -> None:
    """Make this owner count the first contribution ten times in its results, with its own signature."""
    honest_desk = owner.group._make_reducer

    def desk_of(*terms: Any) -> Any:
        desk = honest_desk(*terms)
        assert desk is not None
        signed = desk._signed

        async def forged(payload: Any, named: tuple[int, ...]) -> ShardResult:
            other = bytearray(payload)
            tokens, factor, signature = HEAD.unpack_from(other)
            HEAD.pack_into(other, 0, 10 * tokens, factor, signature)
            return await signed(bytes(other), named)

        desk._signed = forged  # type: ignore[method-assign]
        return desk

    owner.group._make_reducer = desk_of  # type: ignore[method-assign]


def test_an_owner_that_changes_a_part_is_found_out_by_every_member() -> None:
    async def scenario() -> None:
        party = Party(4, "topk", SPARSE, elements=ELEMENTS)
        liar, *honest = party.members
        forge(liar)
        await party.play(0)
        for member in honest:
            found = [event for event in member.events if isinstance(event, StandingLowered)]
            assert {(event.peer, event.code) for event in found} == {(liar.me, "signature")}
            assert "did not sign" in member.got(0).reason
            assert sum(end - start for start, end in member.got(0).spans) == ELEMENTS * 3 // 4
        assert len(party.digests(honest)) == 1

    run_virtual(scenario())
