"""All encrypted bytes of a round at the sockets, compared with the prediction of `peer manifest show`."""

from __future__ import annotations

import asyncio

import pytest
import torch

from peer.clock.run_clock import RunClock
from peer.exchange.group import audit
from peer.lab.sim.fake_trainer import FakeTrainer
from peer.methods.registry import PRESETS
from peer.observe.events import RoundEnded
from peer.run.costs import cost_of
from peer.run.manifest import default_text, derive, parse_manifest
from peer.run.model_layout import layout_for
from peer.run.resolve import resolve
from tests.support.grpc_peers import GrpcPeer, GrpcRun, play
from tests.support.seeds import nightly

MEMBERS = 4
SETTINGS = ("clock=steps", "sync_every=10", "model.hidden_size=128", "model.intermediate_size=384")
SPARSE = ("model.hidden_size=256", "model.intermediate_size=768")
"""Payloads of the sparse codec are short, so that other messages are a larger part."""
DAILY = ("gossip", "streaming-diloco", "none")


def passed(peers: list[GrpcPeer]) -> int:
    return sum(peer.wire.there + peer.wire.back for peer in peers)


def exchanged(peers: list[GrpcPeer]) -> bool:
    ends = [event for peer in peers for event in peer.events if isinstance(event, RoundEnded)]
    return all(end.outcome == "exchanged" and len(end.partner.split()) == len(peers) - 1 for end in ends)


@pytest.mark.parametrize("preset", [*DAILY, *nightly(one for one in PRESETS if one not in DAILY)])
def test_as_many_bytes_pass_as_are_told(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the second period, because the first one makes the connections."""
    monkeypatch.setattr(audit, "CHANCE", 0.0)  # one in fifty rounds would fetch another whole shard for an audit
    group = (f"max_group={MEMBERS}",) if PRESETS[preset].method.topology == "group" else ()
    sparse = SPARSE if PRESETS[preset].method.codec == "topk" else ()
    text = derive(default_text(), [f"preset={preset}", *SETTINGS, *group, *sparse])
    manifest = parse_manifest(text.encode())
    method = resolve(manifest.sync)
    layout, told = layout_for(manifest.model, method, None), cost_of(manifest.model, method)

    def trainer(number: int) -> FakeTrainer:
        return FakeTrainer(layout, RunClock(), step_seconds=0.002, seed=number)

    count = max(2, told.peers)

    async def lasting(periods: int) -> float:
        first = torch.ones(
            layout.elements
        )  # params must be larger than the lattice codec's steps, or blocks are requested again
        run = GrpcRun(method, layout, first, count, periods * method.fragments)
        peers = await play(run, trainer)
        assert method.topology == "solo" or exchanged(peers)
        return passed(peers) / count

    async def side_by_side() -> list[float]:
        return await asyncio.gather(lasting(1), lasting(2))

    one, two = asyncio.run(side_by_side())
    if method.topology == "solo":
        assert one == two == sum(told.socket_bytes) == 0
    else:
        assert two - one == pytest.approx(sum(told.socket_bytes), rel=0.05)
        assert two - one == pytest.approx(told.bytes_per_sync, rel=0.05)
