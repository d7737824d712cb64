"""Real processes on loopback: faults are caused, then what was lost is counted."""

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
from peer.observe.totals import ledger, read_totals
from peer.run.home import Home
from peer.run.manifest import SignedManifest, default_text, sign_text
from peer.run.overrides import apply_overrides
from peer.trainer.arena import read_counters

SETTINGS = ["sync.clock=seconds", "sync_every=3", "total_rounds=100000", "eval_every=5", "eval_windows=16", "batch=2"]


async def eventually(what: str, seconds: float, check: Callable[[], Awaitable[Any]]) -> Any:
    """Poll until `check` gives something true; its last word."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := await check():
            return found
        await asyncio.sleep(0.2)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def exchanged(status: dict[str, Any] | None) -> int:
    return 0 if status is None else int(status.get("rounds", {}).get("exchanged", 0))


def imbalance(daemon: Daemon, signed: SignedManifest, elements: int) -> int:
    folder = Home(daemon.home).run(signed.run_id)
    counters = read_counters(folder.path, 1)
    book = ledger(read_totals(folder.journal), counters.tokens, counters.base, [elements])
    assert book.processed > 0
    return book.imbalance


async def scenario(home: Path) -> None:
    bootstrap = Daemon("bootstrap", home / "b")
    peers = [Daemon(f"peer {n}", home / f"p{n}") for n in (1, 2, 3)]
    operator = identities.load_or_create(Home(bootstrap.home).identity)
    signed = sign_text(apply_overrides(default_text(), SETTINGS), operator, home / "run.toml")
    try:
        ticket = await start_bootstrap(bootstrap, home / "run.toml", 1)
        for daemon in peers:
            await start_peer(daemon, ticket, threads=1, speed=0.2, min_peers=1)
        await trains_on(peers)
        await a_killed_trainer_comes_back(peers[0])
        await a_killed_daemon_leaves_nothing_and_resumes(peers, ticket)
        await whoever_leaves_is_gone_cleanly(peers[2])
        await trains_on(peers[:2])
        for daemon in peers[:2]:
            await daemon.stop(10.0)
        for daemon in peers:
            assert imbalance(daemon, signed, 217_664) == 0, daemon.name
    finally:
        for daemon in (*peers, bootstrap):
            await daemon.stop(10.0)


async def trains_on(peers: list[Daemon]) -> None:
    """Everybody exchanges at least once more from now on."""
    before = [exchanged(await daemon.status()) for daemon in peers]
    for daemon, count in zip(peers, before, strict=True):

        async def once_more(daemon: Daemon = daemon, count: int = count) -> bool:
            assert daemon.running, daemon.last_words()
            return exchanged(await daemon.status()) > count

        await eventually(f"{daemon.name} exchanges", 180, once_more)


async def a_killed_trainer_comes_back(daemon: Daemon) -> None:
    first = await daemon.status()
    assert first is not None
    os.kill(first["trainer_pid"], signal.SIGKILL)

    async def another() -> bool:
        status = await daemon.status()
        return status is not None and status["trainer_pid"] not in (None, first["trainer_pid"])

    await eventually("the trainer is back", 90, another)
    await trains_on([daemon])


async def a_killed_daemon_leaves_nothing_and_resumes(peers: list[Daemon], ticket: str) -> None:
    victim = peers[1]
    folder = next((victim.home / "runs").iterdir())

    async def has_checkpoint() -> bool:
        return any((folder / "checkpoints").glob("checkpoint-*"))

    await eventually("a checkpoint", 120, has_checkpoint)
    assert victim.process is not None
    orphans = children(victim.process.pid)
    assert len(orphans) == 2, "the trainer and the DHT helper"
    victim.kill()
    await victim.wait()

    async def none_left() -> bool:
        return not any(alive(pid) for pid in orphans)

    await eventually("no child is left", 60, none_left)
    await trains_on([peers[0]])
    await start_peer(victim, ticket, threads=1, speed=0.2, min_peers=1)
    await trains_on([victim])
    assert "resumed from own checkpoint" in victim.log.read_text()


async def whoever_leaves_is_gone_cleanly(daemon: Daemon) -> None:
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert await daemon.wait() == 0, daemon.last_words()
    assert time.monotonic() - began < 10


def test_kills_and_leaves(tmp_path: Path) -> None:
    asyncio.run(scenario(tmp_path))
