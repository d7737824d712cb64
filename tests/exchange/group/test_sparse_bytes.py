"""Sparse results over real links: the number of transferred bytes, and a result that is resumed where it broke."""

from __future__ import annotations

import asyncio

import pytest
import torch

from peer.clock.run_clock import RunClock
from peer.exchange.group.member import GroupMean
from peer.methods.topology import GROUP
from peer.observe.status.codec import to_json
from peer.protocol.messages import RoundKey
from peer.run.costs import exchange_bytes
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.exchange.group.test_resumed_contributions import Cuts, Member, two

METHOD = resolve(SyncSection(preset="sparseloco"))


async def play(members: list[Member], round_: int, elements: int) -> list[GroupMean]:
    now, base, maker = RunClock().now(), bytes([round_]) * 32, torch.Generator().manual_seed(round_)
    values = [torch.randn(elements, generator=maker) for _ in members]
    got = await asyncio.gather(
        *(
            member.group.exchange(RoundKey(round_, 0), value, base, 100, now, now + 30, now + 60)
            for member, value in zip(members, values, strict=True)
        )
    )
    assert all(one.spans == one.named == [(0, elements)] for one in got), [one.reason for one in got]
    assert all(torch.equal(one.mean, got[0].mean) for one in got)
    assert not any(to_json(member.reputation.report())["refusals"] for member in members)
    return got


def test_eight_members_send_what_is_promised_and_less_than_two_and_a_half_bits() -> None:
    """Counts all encrypted bytes at the sockets in the second round, because the first one makes the connections."""
    elements = 8 * 2**17

    async def main() -> float:
        async with two("topk", elements, 8) as members:
            await play(members, 0, elements)
            before = sum(member.wire.there + member.wire.back for member in members)
            await play(members, 1, elements)
            return (sum(member.wire.there + member.wire.back for member in members) - before) / len(members)

    sent = asyncio.run(main())
    told = exchange_bytes(METHOD, elements, 8) + 7 * GROUP.message_bytes
    assert sent == pytest.approx(told, rel=0.05)
    assert 8 * sent <= 2.5 * elements


def test_a_relayed_result_goes_on_where_it_broke_off(monkeypatch: pytest.MonkeyPatch) -> None:
    elements = 2**23

    async def main() -> None:
        cuts = Cuts(monkeypatch, "result", [300_000], 0.1, "sever")
        async with two("topk", elements) as members:
            cuts.members = members
            await play(members, 0, elements)
            assert cuts.made
            assert all(member.wire.calls > 1 for member in members)

    asyncio.run(main())
