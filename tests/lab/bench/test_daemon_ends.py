"""The two ends of the swap benchmark, both in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from benchmarks.group_end import GroupEnd
from benchmarks.round_end import RoundEnd
from peer.lab.bench.daemon_process import DaemonEnd, Setting, Ticker

ELEMENTS = 20_000


async def met(
    *commands: dict[str, Any], cap: float = 0.0, made: Sequence[DaemonEnd] = ()
) -> list[list[dict[str, Any]]]:
    """Run these commands on two connected ends, and return the replies."""
    ends = made or [DaemonEnd(Setting(rank, "bf16", ELEMENTS, cap)) for rank in range(2)]
    try:
        records = [await end.open() for end in ends]
        for end, other in zip(ends, reversed(records), strict=True):
            end.set_partner(other)
        return [list(await asyncio.gather(*(end.execute(command) for end in ends))) for command in commands]
    finally:
        for end in ends:
            await end.close()


def test_both_ends_swap_and_tell_what_it_took() -> None:
    rounds = asyncio.run(met({"do": "swap", "round": 1}, {"do": "swap", "round": 2}))

    assert [len(found) for found in rounds] == [2, 2]
    for end in rounds[1]:
        assert 0 < end["seconds"] < 30
        assert end["peak"] >= end["rss"] - 1
        assert end["late_ms"]
        assert min(end["late_ms"]) >= 0


@pytest.mark.parametrize(("work", "share"), [("whole", 1.0), ("piled", 0.5)])
def test_a_whole_round_steps_and_hands_the_result_on(work: str, share: float) -> None:
    async def main() -> list[RoundEnd]:
        ends = [RoundEnd(Setting(rank, "fp32", ELEMENTS)) for rank in range(2)]
        await met({"do": "swap", "round": 1, "work": work}, made=ends)
        return ends

    one, other = asyncio.run(main())

    first = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0))
    mean = (one.work + other.work) / 2
    assert torch.allclose(one.state.params, first + 0.7 * share * (mean - first), atol=1e-6)
    assert torch.equal(one.state.params, other.state.params), "both began with the same"
    assert torch.equal(one.result, one.state.params)


def test_a_cap_is_kept() -> None:
    """40 kB at 100 kB/s take 0.4 s, minus the burst that may be sent at once."""
    (found,) = asyncio.run(met({"do": "swap", "round": 1}, cap=100_000.0))

    assert min(end["seconds"] for end in found) > 0.25


def test_encoding_alone_moves_no_bytes_and_lasts_as_long_as_told() -> None:
    (found,) = asyncio.run(met({"do": "encode", "seconds": 0.05}))

    assert all(end["seconds"] >= 0.05 for end in found)


def test_the_ticker_sees_a_loop_that_stands_still() -> None:
    async def stand_still() -> list[float]:
        ticker = Ticker()
        async with ticker.running():
            await asyncio.sleep(0.005)
            until = time.perf_counter() + 0.05
            while time.perf_counter() < until:
                pass
        return ticker.late

    assert max(asyncio.run(stand_still())) > 0.02, "it is later by what else the machine does"


@pytest.mark.parametrize("codec", ["fp32", "int4"])
def test_a_group_s_round_steps_all_alike(codec: str) -> None:
    async def main() -> list[GroupEnd]:
        ends = [GroupEnd(Setting(rank, codec, ELEMENTS)) for rank in range(3)]
        try:
            records = [await end.open() for end in ends]
            for number, end in enumerate(ends):
                end.set_partner({"others": records[:number] + records[number + 1 :]})
            for command in ({"do": "greet"}, {"do": "swap", "round": 1}, {"do": "swap", "round": 2}):
                await asyncio.gather(*(end.execute(command) for end in ends))
        finally:
            for end in ends:
                await end.close()
        return ends

    one, *others = asyncio.run(main())

    first = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(one.state.params, first)
    assert all(torch.equal(one.state.params, other.state.params) for other in others)
    assert all(torch.equal(end.result, end.state.params) for end in (one, *others))
