"""A real peer is paused, left and started again while still paused. It then continues from its state without losing
work."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from peer import identity as identities
from peer.cli.main import peer
from peer.lab.localswarm.processes import Daemon, start_bootstrap, start_peer
from peer.observe.event_codec import read_lines
from peer.observe.events import Dropped, Paused, RoundEnded, WentOn
from peer.run.home import Home, RunFolder
from peer.run.manifest import default_text, sign_text
from peer.run.overrides import apply_overrides
from peer.trainer.arena import read_counters
from tests.integration.test_daemons import eventually, imbalance

pytestmark = pytest.mark.processes

SETTINGS = [
    "sync.clock=steps",
    "sync_every=30",
    "total_rounds=1000000",
    "eval_every=1000",
    "eval_windows=16",
    "batch=2",
]
ELEMENTS = 217_664


def call(daemon: Daemon, *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(peer, [*arguments, "--json", "--home", str(daemon.home)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    told: dict[str, Any] = json.loads(result.output)
    return told


async def is_in(daemon: Daemon, status: str) -> dict[str, Any]:
    async def told() -> dict[str, Any] | None:
        assert daemon.running, daemon.log_tail()
        report = await daemon.status()
        return report if report is not None and report["status"] == status else None

    found: dict[str, Any] = await eventually(f"{daemon.name} is {status}", 270, told)
    return found


def tokens(folder: RunFolder) -> int:
    return read_counters(folder.path, 1).tokens


async def works(daemon: Daemon, folder: RunFolder) -> None:
    before = tokens(folder)

    async def more() -> bool:
        assert daemon.running, daemon.log_tail()
        return tokens(folder) > before

    await eventually("it trains", 300, more)


async def scenario(home: Path) -> None:
    node, daemon = Daemon("bootstrap", home / "b"), Daemon("peer", home / "p")
    operator = identities.load_or_create(Home(node.home).identity)
    signed = sign_text(apply_overrides(default_text(), SETTINGS), operator, home / "run.toml")
    folder = Home(daemon.home).run(signed.run_id)
    try:
        ticket = await start_bootstrap(node, home / "run.toml", 1)
        await start_peer(daemon, ticket, threads=1, speed=0.2, min_peers=1)
        await works(daemon, folder)
        assert (await asyncio.to_thread(call, daemon, "pause"))["paused"]["now"].startswith("paused by you since ")
        report = await is_in(daemon, "paused")
        assert report["paused"]["since"] is not None

        async def stands_still(times: int) -> bool:
            return sum(isinstance(event, Paused) for event in journal(folder)) == times

        await eventually("everything stands still and is saved", 180, lambda: stands_still(1))
        stood = tokens(folder)
        await daemon.stop(20.0)
        await start_peer(daemon, ticket, threads=1, speed=0.2, min_peers=1)
        await is_in(daemon, "paused")
        await eventually("it stands still again", 180, lambda: stands_still(2))
        assert tokens(folder) == stood, "it stood still, through the restart"
        assert "this peer will not train" in daemon.log.read_text()
        await asyncio.to_thread(call, daemon, "resume")
        await works(daemon, folder)
        began = time.monotonic()
        daemon.process.terminate()  # type: ignore[union-attr]
        assert await daemon.wait() == 0, daemon.log_tail()
        print(f"left within {time.monotonic() - began:.1f} s")
    finally:
        await daemon.stop(10.0)
        await node.stop(10.0)
    found = journal(folder)
    assert [event.by for event in found if isinstance(event, Paused)] == ["volunteer", "volunteer"]
    assert any(isinstance(event, WentOn) for event in found)
    assert not [event for event in found if isinstance(event, Dropped)], "nothing is lost"
    assert all(event.dropped == 0 for event in found if isinstance(event, RoundEnded))
    assert imbalance(daemon, signed, ELEMENTS) == 0


def journal(folder: RunFolder) -> list[Any]:
    return [found[0] for found in read_lines(folder.journal) if found is not None]


def test_paused_restarted_and_resumed_without_loss(tmp_path: Path) -> None:
    asyncio.run(scenario(tmp_path))
