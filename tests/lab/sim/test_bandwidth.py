"""Transfers share links, and small messages do not wait behind bulk transfers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from peer.errors import PartnerLost, PartnerSilent, UsageError
from peer.lab.sim.bandwidth import milestones
from peer.lab.sim.links import MBIT, MSS, Link, message_s, profile, stream_cap, wire_bytes
from peer.lab.sim.memory_transport import MemoryTransport
from peer.lab.sim.network import Network
from peer.lab.sim.setting import SwarmSetting, SwarmWorld, layout_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, Gate, VirtualClock, run_virtual
from peer.observe.events import RoundEnded
from peer.protocol.messages import PeerId
from peer.protocol.schedule import RoundClock
from peer.run.resolve import resolve
from peer.run.sections import SyncSection

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
MEGA = 10**6


def network(**links: Link) -> Network:
    made = Network(link=Link("plain", 1e6, 1e6, 0.01))
    made.links = {PeerId(name): link for name, link in links.items()}
    return made


def timed(network: Network, *carries: tuple[PeerId, PeerId, int]) -> list[float]:
    """Return when each of these transfers ends. All begin at 0."""

    async def one(sender: PeerId, to: PeerId, nbytes: int) -> float:
        await network.carry(sender, to, nbytes)
        return asyncio.get_running_loop().time()

    async def main() -> list[float]:
        return list(await asyncio.gather(*(one(*carry) for carry in carries)))

    return run_virtual(main())


def test_a_transfer_takes_its_bytes_at_the_slower_end() -> None:
    asymmetric = network(a=Link("home", 0.5e6, 5e6, 0.01))
    (up,) = timed(asymmetric, (A, B, MEGA))
    (down,) = timed(asymmetric, (B, A, MEGA))
    assert up == pytest.approx(0.02 + wire_bytes(MEGA) / 0.5e6, rel=1e-6)
    assert down == pytest.approx(0.02 + wire_bytes(MEGA) / 1e6, rel=1e-6)


def test_an_uplink_is_divided_and_what_ends_frees_its_part() -> None:
    half, whole = timed(network(), (A, B, MEGA), (A, C, 2 * MEGA))
    assert half == pytest.approx(2 * wire_bytes(MEGA) / 1e6, rel=0.02)
    assert whole == pytest.approx((wire_bytes(MEGA) + wire_bytes(2 * MEGA)) / 1e6, rel=0.02)


def test_both_ways_at_once_disturb_each_other_not_at_all() -> None:
    there, back = timed(network(), (A, B, MEGA), (B, A, MEGA))
    assert there == back == pytest.approx(0.02 + wire_bytes(MEGA) / 1e6, rel=1e-6)


def test_a_small_message_does_not_wait_behind_bulk() -> None:
    net = network()

    async def main() -> float:
        class Nobody: ...

        MemoryTransport(net, B, Nobody(), VirtualClock())  # type: ignore[arg-type]
        bulk = asyncio.create_task(net.carry(A, B, 100 * MEGA))
        await asyncio.sleep(1)
        before = asyncio.get_running_loop().time()
        await net.reach(A, B)
        bulk.cancel()
        return asyncio.get_running_loop().time() - before

    assert run_virtual(main()) == pytest.approx(0.02)


def test_every_byte_is_handed_over_in_few_steps() -> None:
    marks = milestones(100 * MEGA, 1e6)
    assert marks[-1] == 100 * MEGA
    assert marks == sorted(set(marks))
    assert len(marks) < 64
    assert len(milestones(MEGA, 100e6)) == 1
    assert milestones(0, 1e6) == []


def cut_short(fault: Coroutine[Any, Any, None], net: Network) -> float:
    """Return when a transfer of 10 s gives up if `fault` happens at 2 s."""

    async def main() -> float:
        carrying = asyncio.create_task(net.carry(A, B, 10 * MEGA))
        await asyncio.sleep(2)
        await fault
        with pytest.raises(PartnerLost):
            await carrying
        return asyncio.get_running_loop().time()

    return run_virtual(main())


def test_a_kill_breaks_a_transfer_at_once_and_a_cut_when_nothing_came_for_long() -> None:
    net = network()

    async def kill() -> None:
        net.kill(A)

    async def cut() -> None:
        net.cut(B, A, both_ways=False)  # cuts the acknowledgements only

    assert cut_short(kill(), net) == pytest.approx(2)
    assert cut_short(cut(), net) == pytest.approx(7)


@pytest.mark.parametrize(("stopped_s", "ends"), [(3.0, True), (6.0, False)])
def test_a_stopped_peer_delays_a_transfer_or_loses_it(stopped_s: float, ends: bool) -> None:
    net = network()
    gate = net.gates[B] = Gate()

    async def main() -> float:
        carrying = asyncio.create_task(net.carry(A, B, MEGA))
        await asyncio.sleep(0.5)
        gate.close()
        net.changed(B)
        await asyncio.sleep(stopped_s)
        gate.open()
        net.changed(B)
        await carrying
        return asyncio.get_running_loop().time()

    if ends:
        assert run_virtual(main()) == pytest.approx(0.02 + stopped_s + wire_bytes(MEGA) / 1e6, rel=1e-3)
    else:
        with pytest.raises(PartnerSilent):
            run_virtual(main())


def test_loss_bounds_a_stream_and_delays_a_message_by_a_timeout() -> None:
    near, lossy = Link("near", 1e9, 1e9, 0.01), Link("lossy", 1e9, 1e9, 0.04, loss=0.01)
    assert stream_cap(near, near) == float("inf")
    assert stream_cap(near, lossy) == pytest.approx(MSS / 0.1 * 1.5**0.5 / 0.1)
    rng = random.Random(1)
    took = [message_s(near, lossy, rng) for _ in range(10_000)]
    late = [seconds for seconds in took if seconds > 0.05 + 1e-9]
    assert min(took) == pytest.approx(0.05)
    assert 60 < len(late) < 150
    assert min(late) == pytest.approx(0.25)


def test_profiles_are_found_by_name_or_the_nearest_is_named() -> None:
    assert profile("cable").up == 10 * MBIT
    with pytest.raises(UsageError) as refused:
        profile("cabel")
    assert "cable" in refused.value.fix


def test_overhead_is_about_four_per_cent() -> None:
    assert 1.035 < wire_bytes(MEGA) / MEGA < 1.045


def test_a_fast_home_waits_until_a_slow_uplink_has_sent_everything() -> None:
    """The fast home has sent its payload within a second, and the slow one needs 16 s. Over gRPC both sides of a swap
    stay until both payloads have arrived. A side that went on alone would wait too long for the next part."""
    links = {0: Link("fast", 50 * MBIT, 50 * MBIT, 0.01), 1: Link("slow", 1 * MBIT, 50 * MBIT, 0.01)}
    method = resolve(SyncSection(preset="gossip", acceptance="finite"))

    async def main() -> SimulatedSwarm:
        clock = RoundClock("seconds", 120.0, 1, EPOCH)
        setting = SwarmSetting(method=method, rounds=clock, total_rounds=4, seed=1, layout=layout_of(method, 1024))
        swarm = SimulatedSwarm(2, setting, SwarmWorld(links=links, weight=2e6 / 1024), step_seconds=1.0)
        await swarm.run()
        return swarm

    swarm = run_virtual(main())
    outcomes = [event.outcome for peer in swarm.peers for event in peer.events if isinstance(event, RoundEnded)]
    assert outcomes == ["exchanged"] * 8
