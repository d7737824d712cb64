"""Real processes: bootstrap nodes and DHT helpers die, the others train on and find each other again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from peer import identity as identities
from peer.lab.localswarm.processes import Daemon, start_bootstrap, start_peer
from peer.observe import events
from peer.observe.event_codec import read_lines
from peer.run.home import Home
from peer.run.manifest import SignedManifest, default_text, sign_text
from peer.run.overrides import apply_overrides

SETTINGS = ["sync.clock=seconds", "sync_every=2", "total_rounds=100000", "eval_every=1000", "batch=2"]


async def eventually(what: str, seconds: float, check: Callable[[], Awaitable[Any]]) -> float:
    """Poll until `check` gives something true; how long it took."""
    began = time.monotonic()
    while not await check():
        assert time.monotonic() - began < seconds, f"not within {seconds:.0f} s: {what}"
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def status_of(daemon: Daemon) -> dict[str, Any]:
    assert daemon.running, daemon.last_words()
    return await daemon.status() or {}


async def trains_on(*peers: Daemon) -> None:
    """Everybody exchanges at least once more from now on."""
    for peer, before in [(peer, exchanged(await status_of(peer))) for peer in peers]:

        async def once_more(peer: Daemon = peer, before: int = before) -> bool:
            return exchanged(await status_of(peer)) > before

        await eventually(f"{peer.name} exchanges", 120, once_more)


def exchanged(status: dict[str, Any]) -> int:
    return int(status.get("rounds", {}).get("exchanged", 0))


def journal(daemon: Daemon, signed: SignedManifest) -> list[events.Event]:
    lines = read_lines(Home(daemon.home).run(signed.run_id).journal)
    return [line[0] for line in lines if line is not None]


async def scenario(home: Path) -> None:
    bootstrap = Daemon("bootstrap", home / "b")
    peers = [Daemon(f"peer {n}", home / f"p{n}") for n in (1, 2)]
    operator = identities.load_or_create(Home(bootstrap.home).identity)
    signed = sign_text(apply_overrides(default_text(), SETTINGS), operator, home / "run.toml")
    try:
        ticket = await start_bootstrap(bootstrap, home / "run.toml", 1)
        await asyncio.gather(*(start_peer(peer, ticket, threads=1, speed=0.2, min_peers=1) for peer in peers))
        await trains_on(*peers)
        await a_killed_helper_costs_no_round(peers[0], peers[1], signed)
        for victim in (bootstrap, peers[1]):
            victim.kill()
            await victim.wait()
        await start_peer(peers[1], ticket, threads=1, speed=0.2, min_peers=1)
        await trains_on(*peers)
        assert "resumed from own checkpoint" in peers[1].log.read_text()
        await eventually("they forget the bootstrap node", 60, lambda: has_neighbours(1, *peers))
        assert await start_bootstrap(bootstrap, home / "run.toml", 1) == ticket, "it listens where it did"
        await eventually("all see it again, and it them", 60, lambda: has_neighbours(2, bootstrap, *peers))
    finally:
        await asyncio.gather(*(daemon.stop(10.0) for daemon in (*peers, bootstrap)))


async def a_killed_helper_costs_no_round(victim: Daemon, partner: Daemon, signed: SignedManifest) -> None:
    before = await status_of(victim)
    seen = len(journal(victim, signed))
    os.kill(before["directory"]["pid"], signal.SIGKILL)

    async def joined_again() -> bool:
        now = (await status_of(victim))["directory"]
        return bool(now["losses"] == 1 and now["state"] == "joined")

    await eventually("the helper is back among the others", 60, joined_again)
    after = await status_of(victim)
    assert after["directory"]["pid"] != before["directory"]["pid"]
    assert "signal 9 (SIGKILL)" in after["directory"]["last_loss"]
    await trains_on(victim, partner)
    since = journal(victim, signed)[seen:]
    assert [event.cause for event in since if isinstance(event, events.HelperEnded)] == [
        after["directory"]["last_loss"]
    ]
    (back,) = [event for event in since if isinstance(event, events.HelperBack)]
    assert 0 < back.seconds < 60  # how fast depends on what else the machine does, so this is no promise
    outcomes = [event.outcome for event in since if isinstance(event, events.RoundEnded)]
    assert outcomes == ["exchanged"] * len(outcomes), outcomes
    assert not [event for event in since if isinstance(event, events.RoundMissed)]


async def has_neighbours(count: int, *daemons: Daemon) -> bool:
    reports = [await status_of(daemon) for daemon in daemons]
    return all(report.get("neighbours") == count for report in reports)


def test_bootstrap_nodes_and_helpers_die(tmp_path: Path) -> None:
    asyncio.run(scenario(tmp_path))
