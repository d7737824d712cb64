"""The end of a run in a whole swarm: peers that have finished wait until the operator's node has the last state."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import cast

import pytest
import torch

from peer.aio.threads import inline
from peer.identity import Identity
from peer.joining.context import JoinContext
from peer.lab.sim.directory import MemoryDirectory
from peer.lab.sim.memory_transport import MemoryTransport
from peer.lab.sim.process import RUN
from peer.lab.sim.setting import SwarmSetting, SwarmWorld, layout_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.node.handler import RequestHandler
from peer.node.operator.collect import StateCollector
from peer.node.operator.keeper import ServableState, StateKeeper, WatchedRun
from peer.node.operator.kept import StateArchive
from peer.node.operator.run_progress import RunActivity, RunEnd, RunProgress
from peer.ports.directory import Directory
from peer.protocol.messages import PeerId, PeerRecord, Status
from peer.protocol.policy.amendments import RunPolicy
from peer.protocol.schedule import RoundClock
from peer.rounds.loop import FAREWELL_S, LINGER_S
from peer.run.home import RunFolder
from peer.run.manifest import Manifest
from peer.run.resolve import resolve
from peer.run.sections import SyncSection

ROUND_S, ROUNDS = 30.0, 4
END = ROUND_S * ROUNDS
NODE, STRANGER = PeerId("sim-999"), PeerId("sim-998")


def build(preset: str) -> SimulatedSwarm:
    method = resolve(SyncSection(preset=preset, clock="seconds", sync_every=ROUND_S, fragments=1))
    setting = SwarmSetting(
        method=method,
        rounds=RoundClock("seconds", method.sync_every, method.fragments, EPOCH),
        total_rounds=ROUNDS,
        seed=3,
        layout=layout_of(method, 256),
        eval_every=100,
    )
    return SimulatedSwarm(4, setting, SwarmWorld(nodes=frozenset([NODE])), step_seconds=2.0)


async def announce(swarm: SimulatedSwarm, who: PeerId, status: Status) -> None:
    """Announce this record in the directory now."""
    now = swarm.hub.now()
    record = PeerRecord(who, RUN, ("memory:x",), True, 1, 1, ROUNDS, 0.0, status, now, now + 100.0)
    await MemoryDirectory(swarm.hub, who, RUN).announce(record)


async def keep_saying(swarm: SimulatedSwarm, who: PeerId, status: Status) -> None:
    while True:
        await announce(swarm, who, status)
        await asyncio.sleep(1.0)


async def seconds_of(swarm: SimulatedSwarm) -> float:
    began = swarm.hub.now()
    await swarm.run()
    return swarm.hub.now() - began


async def keep(swarm: SimulatedSwarm, folder: Path, served: list[ServableState], *, momentum: bool) -> None:
    """Run the loop in which the operator's node stores states. It does not return."""
    clock, directory = VirtualClock(), MemoryDirectory(swarm.hub, NODE, RUN)
    context = JoinContext(
        run_id=RUN,
        me=NODE,
        directory=cast(Directory, directory),
        transport=MemoryTransport(swarm.network, NODE, RequestHandler(), clock),
        clock=clock,
        say=print,
        rng=random.Random(1),
    )
    manifest = Manifest.model_validate({"format": 1, "name": "w", "operator": Identity.generate().peer_id})
    progress = RunProgress(folder / "run_round", lambda: swarm.rounds, clock.now)
    view = WatchedRun(
        manifest=manifest,
        end=RunEnd(lambda: swarm.rounds, ROUNDS, progress),
        progress=progress,
        activity=RunActivity(),
        policy=RunPolicy,
    )
    states = StateArchive(RunFolder(folder), RUN, swarm.layout, print, momentum=momentum)
    collector = StateCollector(context, swarm.layout, folder / "fetched", inline, momentum=momentum)
    keeper = StateKeeper(context, view, states, collector, None, 60.0, inline, served.append)
    keeping = asyncio.create_task(keeper.run())
    try:
        while True:
            progress.learn((await directory.peers()).values())
            await announce(swarm, NODE, keeper.status)
            await asyncio.sleep(1.0)
            assert not keeping.done(), keeping.exception()
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})


@pytest.mark.parametrize("preset", ["noloco", "diloco"])
def test_the_node_has_the_last_state_before_the_peers_go(preset: str, tmp_path: Path) -> None:
    served: list[ServableState] = []

    async def main() -> tuple[SimulatedSwarm, float]:
        swarm = build(preset)
        keeping = asyncio.create_task(keep(swarm, tmp_path, served, momentum=preset == "diloco"))
        took = await seconds_of(swarm)
        assert not keeping.done(), keeping.exception()
        keeping.cancel()
        await asyncio.wait({keeping})
        return swarm, took

    swarm, took = run_virtual(main())
    assert took < END + LINGER_S, "they did not have to wait for long"
    last = served[-1]
    assert last.facts.round == ROUNDS
    ends = torch.stack([peer.outer.params for peer in swarm.peers])
    assert torch.allclose(last.outer.params, ends.mean(0))
    if preset == "diloco":
        assert torch.equal(last.outer.params, ends[0])
        assert torch.equal(last.outer.momentum, swarm.peers[0].outer.momentum)


@pytest.mark.parametrize(
    ("who", "status", "waits"),
    [
        (NODE, Status.SERVING, True),
        (NODE, Status.ENDED, False),
        (STRANGER, Status.SERVING, False),
        (STRANGER, Status.ENDED, False),
    ],
)
def test_peers_wait_for_a_node_of_the_operator_alone_and_not_for_ever(who: PeerId, status: Status, waits: bool) -> None:
    async def main() -> float:
        swarm = build("noloco")
        saying = asyncio.create_task(keep_saying(swarm, who, status))
        took = await seconds_of(swarm)
        saying.cancel()
        await asyncio.wait({saying})
        return took

    took = run_virtual(main()) - END
    assert (LINGER_S <= took < LINGER_S + 15) if waits else (took < 15), took


def test_a_strangers_word_that_the_run_is_over_does_not_end_the_wait(tmp_path: Path) -> None:
    async def main() -> float:
        swarm = build("noloco")
        says = [keep_saying(swarm, NODE, Status.SERVING), keep_saying(swarm, STRANGER, Status.ENDED)]
        saying = [asyncio.create_task(one) for one in says]
        took = await seconds_of(swarm)
        for task in saying:
            task.cancel()
        await asyncio.wait(saying)
        return took

    assert run_virtual(main()) >= END + LINGER_S - FAREWELL_S
