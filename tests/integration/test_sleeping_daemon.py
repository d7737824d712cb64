"""A real daemon that is stopped for twenty seconds, as by a closed lid: it notices at once, and exchanges again."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from peer import identity as identities
from peer.lab.localswarm.processes import Daemon, start_bootstrap, start_peer
from peer.observe import events
from peer.observe.event_codec import read_lines
from peer.run.home import Home
from peer.run.manifest import default_text, sign_text
from peer.run.overrides import apply_overrides
from tests.integration.test_daemons import SETTINGS, eventually, exchanged, imbalance

STOPPED_S = 20.0


def test_a_daemon_that_was_stopped_says_so_and_goes_on(tmp_path: Path) -> None:
    asyncio.run(scenario(tmp_path))


async def scenario(home: Path) -> None:
    bootstrap = Daemon("bootstrap", home / "b")
    peers = [Daemon(f"peer {n}", home / f"p{n}") for n in (1, 2)]
    operator = identities.load_or_create(Home(bootstrap.home).identity)
    signed = sign_text(apply_overrides(default_text(), SETTINGS), operator, home / "run.toml")
    try:
        ticket = await start_bootstrap(bootstrap, home / "run.toml", 1)
        for daemon in peers:
            await start_peer(daemon, ticket, threads=1, speed=0.2, min_peers=1)
        sleeper = peers[0]

        async def exchanges() -> bool:
            return exchanged(await sleeper.status()) >= 2

        await eventually("two exchanges", 240, exchanges)
        before = exchanged(await sleeper.status())
        assert sleeper.process is not None
        await stopped(sleeper.process.pid)

        async def back() -> bool:
            return exchanged(await sleeper.status()) > before

        await eventually("an exchange after the sleep", 360, back)
        for daemon in peers:
            await daemon.stop(10.0)
        told = journal_of(sleeper, signed.run_id)
        woke = next(event for event in told if isinstance(event, events.Woke))
        assert abs(woke.seconds - STOPPED_S) < 5.0
        assert woke.suspended_s < 1.0, "the machine was awake"
        skipped = next(event for event in told if isinstance(event, events.Skipped))
        assert skipped.reason.startswith("was stopped for ")
        assert skipped.to_round - skipped.from_round >= 3
        assert imbalance(sleeper, signed, 217_664) == 0
    finally:
        for daemon in (*peers, bootstrap):
            await daemon.stop(10.0)


async def stopped(pid: int) -> None:
    """SIGSTOP, a pause as long as the fault is, SIGCONT whatever happens."""
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(STOPPED_S)
    finally:
        os.kill(pid, signal.SIGCONT)


def journal_of(daemon: Daemon, run_id: Any) -> list[events.Event]:
    lines = read_lines(Home(daemon.home).run(run_id).journal)
    return [line[0] for line in lines if line is not None]
