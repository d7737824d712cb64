"""States of pairs that are averaged must be fetched in parallel, each over the line of one home."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch

from peer.aio.threads import inline
from peer.lab.sim.links import Link
from peer.lab.sim.virtual_clock import run_virtual
from peer.node.operator import collect
from peer.node.operator.collect import Collected, StateCollector, distances_of
from peer.outer.state import OuterState
from peer.protocol.messages import PeerId
from peer.protocol.policy.donors import ENOUGH, MEAN_DONORS
from tests.support.joining import LAYOUT, DonorWorld, state_of

UP = 1e5
ONE_S = 4 * LAYOUT.elements / (UP / 2)
"""Seconds that a state takes over a home's line, of which joiners get half."""


def homes(count: int, slow: int = 0) -> DonorWorld:
    """Homes with one state each. The first `slow` of them have a line ten times slower."""
    world = DonorWorld()
    for number in range(count):
        world.donor(f"home {number}", state_of(number), 40)
        up = UP / (10 if number < slow else 1)
        world.network.links[PeerId(f"home {number}")] = Link("home", up=up, down=1e7, latency_s=0.02)
    return world


async def collected(world: DonorWorld, folder: Path) -> tuple[Collected, float]:
    """Return the result of a fetch from all these homes, and its duration in seconds."""
    began = asyncio.get_running_loop().time()
    collector = StateCollector(world.context(), LAYOUT, folder / "fetched", inline, momentum=False)
    found = await collector.collect(world.records)
    assert isinstance(found, Collected), found
    return found, asyncio.get_running_loop().time() - began


def mean_of(numbers: list[int]) -> torch.Tensor:
    return torch.stack([state_of(number).params for number in numbers]).double().mean(0).float()


@pytest.mark.parametrize(
    ("slow", "gone", "most_s", "taken"),
    [
        (0, (), 1.5 * ONE_S, MEAN_DONORS),
        (MEAN_DONORS - ENOUGH, (), 2.5 * ONE_S, ENOUGH),
        (0, ("home 0", "home 1"), 1.5 * ONE_S, ENOUGH),
    ],
    ids=["all at once", "slow homes are not waited for", "some are gone"],
)
def test_a_mean_takes_as_long_as_one_state(
    tmp_path: Path, slow: int, gone: tuple[str, ...], most_s: float, taken: int
) -> None:
    async def test() -> None:
        world = homes(MEAN_DONORS, slow)
        for name in gone:
            world.network.kill(PeerId(name))
        found, seconds = await collected(world, tmp_path)
        assert seconds < most_s
        assert len(found.donors) == taken
        assert found.states == MEAN_DONORS, "each home's line was used for that long"
        numbers = [int(donor.split()[1]) for donor in found.donors]
        assert found.params is not None
        assert torch.equal(found.params, mean_of(numbers))

    run_virtual(test())
    assert list(tmp_path.iterdir()) == [], "nothing is left on the disk"


def test_a_single_home_is_waited_for(tmp_path: Path) -> None:
    async def test() -> None:
        found, _ = await collected(homes(1, slow=1), tmp_path)
        assert found.donors == ("home 0",)

    run_virtual(test())


def near(number: int) -> OuterState:
    """Return a replica near the others."""
    outer = state_of(0)
    return replace(outer, params=outer.params + 0.1 * state_of(number).params)


@pytest.mark.parametrize("trusted", [(), ("home 0", "home 1")])
def test_a_state_that_lies_apart_goes_into_no_mean_where_nobody_can_evaluate_it(
    tmp_path: Path, trusted: Collection[str]
) -> None:
    async def test() -> None:
        world = DonorWorld()
        for number in range(3):
            world.donor(f"home {number}", near(number), 40)
        world.donor("liar", state_of(9), 40)
        collector = StateCollector(
            world.context(),
            LAYOUT,
            tmp_path / "fetched",
            inline,
            momentum=False,
            trusted=lambda: {PeerId(name) for name in trusted},
        )
        found = await collector.collect(world.records)
        assert isinstance(found, Collected), found
        assert found.donors == ("home 0", "home 1", "home 2")
        wanted = torch.stack([near(number).params for number in range(3)]).double().mean(0).float()
        assert found.params is not None
        assert torch.equal(found.params, wanted)
        assert any(line.startswith("the state of liar goes into no kept state: it lies") for line in world.said)

    run_virtual(test())


def test_distances_are_those_of_the_whole_states(tmp_path: Path) -> None:
    states = [state_of(number).params for number in range(3)]
    files = [tmp_path / str(number) for number in range(3)]
    for file, params in zip(files, states, strict=True):
        params.numpy().tofile(file)
    with mock.patch.object(collect, "MEAN_ELEMENTS", LAYOUT.elements // 3 + 1):
        found = torch.tensor(distances_of(files))
    wanted = torch.tensor([[float(torch.dist(one, other)) for other in states] for one in states])
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0)
