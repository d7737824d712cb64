"""A simulated peer must be composed like a daemon's: the same parts, connected in the same way, over simulated
ports."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any, cast

import pytest
import torch

from peer.aio.threads import LowPriorityThread
from peer.identity import Identity
from peer.joining.resume import JoinedState
from peer.joining.sequence import local_terms
from peer.lab.sim.process import build_parts
from peer.lab.sim.setting import SwarmSetting, layout_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.membership.statement_sync import StatementSync
from peer.node.compose import DaemonParts, LocalRun, PeerParts, compose_daemon
from peer.node.handler import RequestHandler
from peer.node.open import LocalNode, OpenNode
from peer.outer.state import OuterState
from peer.protocol.messages import PeerRecord, RunId
from peer.protocol.schedule import RoundClock
from peer.run.manifest import default_text, parse_manifest
from peer.run.options import PeerOptions
from peer.run.resolve import resolve
from peer.run.statements.log import StatementLog
from peer.state.checkpoint import CheckpointStore
from peer.trainer.client import TrainerClient
from peer.transport.grpc_transport import GrpcTransport

ROOMS = ("aio", "clock", "discovery", "lab", "observe", "ports", "trainer", "transport")
OUTSIDE = tuple(f"peer.{room}" for room in ROOMS)
"""Packages of ports and of the journal, in which a simulated peer differs intentionally from a daemon."""
OURS = (
    "LowPriorityThread",
    "KeySigner",
    "KeylessSigner",
    "MemoryFile",
    "ProvenFile",
    "Checkpointer",
    "BytesInMemory",
    "Journal",
)

Edge = tuple[str, str, str]


def connections(parts: PeerParts) -> set[Edge]:
    """Return the references among the parts of a peer as (class, attribute, class)."""
    found, seen, waiting = set[Edge](), set[int](), list[Any]([parts])
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        for name in _attributes(part):
            value = getattr(part, name, None)
            held = value.__self__ if isinstance(value, MethodType) else value
            if _is_part(held):
                found.add((type(part).__name__, name, type(held).__name__))
                waiting.append(held)
    return found


def _attributes(part: object) -> list[str]:
    slots = [name for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*getattr(part, "__dict__", {}), *slots]


def _is_part(held: object) -> bool:
    kind = type(held)
    return kind.__module__.startswith("peer.") and not kind.__module__.startswith(OUTSIDE) and kind.__name__ not in OURS


def simulated(preset: str) -> set[Edge]:
    async def main() -> set[Edge]:
        method = resolve(_manifest(preset).sync)
        rounds = RoundClock("seconds", method.sync_every, method.fragments, EPOCH)
        swarm = SimulatedSwarm(1, SwarmSetting(method=method, rounds=rounds, total_rounds=1, seed=1))
        (peer,) = swarm.peers
        peer.disk.enable_receipts()
        return connections(build_parts(swarm._run, peer, peer.life, OuterState.fresh(swarm.layout, swarm.first)))

    return run_virtual(main())


def of_a_daemon(preset: str, home: Path) -> set[Edge]:
    async def main() -> set[Edge]:
        manifest = _manifest(preset)
        run_id, layout = RunId(b"r" * 32), layout_of(resolve(manifest.sync))
        options = PeerOptions(home=home, run_id=run_id)
        local = LocalNode.of(options, run_id, lambda line: None)
        own, bulk = DaemonParts.of(local, options), LowPriorityThread()
        handler = RequestHandler()
        transport = GrpcTransport(local.identity, run_id, handler, local.clock.now)
        directory: Any = SimpleNamespace(set_operators=lambda operators: None)  # this test does not use it
        later: Any = (None, 0, None, SimpleNamespace(rate=lambda: 0.0), None, None)
        node = OpenNode(local, handler, transport, directory, *later)
        outer = OuterState.fresh(layout, torch.zeros(layout.elements))
        rounds = RoundClock("seconds", manifest.sync.sync_every, len(layout.fragments), EPOCH)
        statements = StatementSync(StatementLog.of(run_id, manifest, local.clock.now), own.journal.append)
        run = LocalRun(
            layout=layout,
            checkpoints=CheckpointStore(local.folder.checkpoints, 2),
            trainer=TrainerClient(local.folder.path, layout, cast(Any, None)),
        )

        def record() -> PeerRecord:
            raise AssertionError("nothing runs here")

        peer = compose_daemon(
            node,
            own,
            manifest,
            local_terms(node.join_context(), manifest, statements, ()),
            run,
            JoinedState(outer, 0, ""),
            rounds,
            founded=b"",
            record=record,
            bulk=bulk,
        )
        try:
            return connections(peer.parts)
        finally:
            bulk.close()
            own.journal.close()

    return asyncio.run(main())


def _manifest(preset: str) -> Any:
    operator = Identity.generate().peer_id
    text = default_text().replace('operator = ""', f'operator = "{operator}"')
    manifest = parse_manifest(text.encode())
    sync = manifest.sync.model_copy(update={"preset": preset, "clock": "seconds", "sync_every": 60.0})
    return manifest.model_copy(update={"sync": sync, "operator": operator})


@pytest.mark.parametrize("preset", ["noloco", "streaming-noloco", "diloco", "streaming-diloco", "none"])
def test_the_simulator_plays_the_daemons_peer(preset: str, tmp_path: Path) -> None:
    ours, theirs = of_a_daemon(preset, tmp_path), simulated(preset)
    assert ours == theirs
    held = {kind for _, _, kind in ours}
    assert {"PeerTable", "FailureDetector", "Reputation", "Matchmaker", "RoundLoop", "SuspendRecovery"} <= held
    assert {"LocalPause", "StatementLog", "TrainerSupervisor"} <= held
