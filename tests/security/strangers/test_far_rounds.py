"""Real processes: the operator's node, and a record with an impossible round."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import pytest

from peer import identity as identities
from peer.discovery.directory import DhtDirectory
from peer.lab.localswarm.processes import Daemon, start_bootstrap, start_peer
from peer.protocol.messages import WIRE_VERSION, PeerId, PeerRecord, RunId, Status
from peer.run.home import Home
from peer.run.manifest import default_text, sign_text
from peer.run.overrides import apply_overrides
from peer.run.ticket import Ticket
from tests.integration.test_daemons import eventually

pytestmark = [pytest.mark.processes, pytest.mark.nightly]

SETTINGS = ["sync.clock=seconds", "sync_every=3", "total_rounds=100000", "eval_every=1000", "batch=2", "context=32"]
FAR, SHOWN_S = 10**6, 8.0
LISTEN = ("/ip4/127.0.0.1/tcp/0",)


async def show_a_far_round(folder: Path, ticket: Ticket) -> None:
    """Announce one record for some seconds, then withdraw it."""
    path, run_id = folder / "stranger.key", RunId(ticket.run_id)
    key = identities.load_or_create(path)
    stranger = await DhtDirectory(
        identity=key, identity_path=path, run_id=run_id, initial_peers=ticket.addresses, host_maddrs=LISTEN
    ).start()
    wire, until = (WIRE_VERSION, WIRE_VERSION), asyncio.get_running_loop().time() + SHOWN_S
    try:
        while asyncio.get_running_loop().time() < until:
            now, me = time.time(), PeerId(key.peer_id)
            await stranger.announce(
                PeerRecord(me, run_id, ("127.0.0.1:9",), True, *wire, FAR, 1.0, Status.TRAINING, now, now + 45.0)
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 1.0)
        await stranger.withdraw()
    finally:
        await stranger.close()


async def scenario(folder: Path) -> None:
    bootstrap, newcomer = Daemon("bootstrap", folder / "b"), Daemon("newcomer", folder / "n")
    operator = identities.load_or_create(Home(bootstrap.home).identity)
    sign_text(apply_overrides(default_text(), SETTINGS), operator, folder / "run.toml")
    try:
        ticket = await start_bootstrap(bootstrap, folder / "run.toml", 2)
        await show_a_far_round(folder, Ticket.decode(ticket))
        await start_peer(newcomer, ticket, threads=1, speed=0.2, min_peers=1, more=("--yes",))

        async def has_state() -> bool:
            assert newcomer.running, newcomer.log_tail()
            return "state: fetched from" in newcomer.log.read_text()

        await eventually("the newcomer has the first state", 180, has_state)
    finally:
        for daemon in (newcomer, bootstrap):
            await daemon.stop(10.0)


def test_one_record_of_a_far_round_does_not_take_the_first_state_from_newcomers(tmp_path: Path) -> None:
    asyncio.run(scenario(tmp_path))
