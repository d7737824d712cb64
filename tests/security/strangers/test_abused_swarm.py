"""Strangers that abuse HTTP/2 against the real processes of a swarm, whose rounds continue.

Swarm and strangers are in network namespaces, so that the strangers have addresses of 64 blocks and an honest newcomer
has its own. `HTTP2_ABUSE=50 make attack` plays fifty variants, which takes an hour: from 1, 40 and 300 connections of 1
and 64 blocks, before and after each has proven a free key. `HTTP2_ABUSE_SEED` draws other variants."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import nat_network
from peer import identity as identities
from peer.lab.localswarm.processes import Daemon, start_bootstrap, start_peer
from peer.run.home import Home
from peer.run.manifest import default_text, sign_text
from peer.run.overrides import apply_overrides
from tests.integration.test_daemons import eventually, exchanged
from tests.support.http2_abuse import WORST, Job, Played

pytestmark = [
    pytest.mark.skipif(bool(nat_network.why_not()), reason=nat_network.why_not()),
    pytest.mark.processes,
    pytest.mark.nightly,
]
SETTINGS = ["sync.clock=seconds", "sync_every=4", "total_rounds=100000", "eval_every=1000", "batch=2"]
BLOCKS = 64
VARIANTS = int(os.environ.get("HTTP2_ABUSE", "0"))
SEED = int(os.environ.get("HTTP2_ABUSE_SEED", "1"))
HELLO_S = 2.0 if VARIANTS else 10.0
"""Seconds of an honest Hello, at most. The short play runs beside other tests."""
MEMORY = 100.0
"""MiB above the memory before the first play, at most."""
ROUNDS_S = 180.0


def test_abuse_costs_little_memory_keeps_nobody_out_and_stops_no_round(tmp_path: Path) -> None:
    sites = [nat_network.open_site("victims", 1), nat_network.open_site("strangers", 2)]
    with nat_network.internet(sites) as hosts:
        sources = [f"62.{number}.0.1" for number in range(1, BLOCKS + 1)]
        core = hosts["victims"].replace("victims", "core")
        nat_network.run("ip", "-n", core, "route", "add", "62.0.0.0/8", "via", "61.2.0.1", "dev", "to1")
        for source in sources:
            nat_network.run("ip", "-n", hosts["strangers"], "addr", "add", f"{source}/32", "dev", "wan")
        asyncio.run(scenario(tmp_path, hosts, sources))


async def scenario(folder: Path, hosts: dict[str, str], sources: list[str]) -> None:
    where = ("ip", "netns", "exec", hosts["victims"])
    bootstrap, peers = Daemon("bootstrap", folder / "b"), [Daemon(f"peer {n}", folder / f"p{n}") for n in (1, 2)]
    sign_text(
        apply_overrides(default_text(), SETTINGS),
        identities.load_or_create(Home(bootstrap.home).identity),
        folder / "run.toml",
    )
    listen = ("--host-maddrs", "/ip4/61.1.0.1/tcp/0")
    try:
        ticket = await start_bootstrap(bootstrap, folder / "run.toml", 1, where=listen, prefix=where)
        for daemon in peers:
            await start_peer(daemon, ticket, threads=1, speed=0.2, min_peers=1, where=listen, prefix=where)
        await exchanges(peers[0], 1)
        for victim in (peers[0], bootstrap):
            await withstands(victim, hosts["strangers"], sources)
        await exchanges(peers[0], exchanged(await peers[0].status()) + 1)
    finally:
        for daemon in (*peers, bootstrap):
            await daemon.stop(10.0)


async def exchanges(peer: Daemon, rounds: int) -> None:
    async def have() -> bool:
        return exchanged(await peer.status()) >= rounds

    await eventually(f"{peer.name} exchanged {rounds} rounds", ROUNDS_S, have)


async def withstands(victim: Daemon, namespace: str, sources: list[str]) -> None:
    job = await job_against(victim, sources)
    all_played, failed = list[Played](), list[str]()
    async for played in plays(job, namespace):
        print(f"{victim.name}: {played}", flush=True)
        all_played.append(played)
        if played.most > all_played[0].before + MEMORY or max(played.hellos) > HELLO_S or not played.opened:
            failed.append(f"{victim.name}: {played}")
        assert victim.running, victim.log_tail()
    assert all_played
    assert not failed, "\n".join(failed)


async def job_against(victim: Daemon, sources: list[str]) -> Job:
    status = await victim.status()
    assert status is not None, victim.log_tail()
    host, _, port = next(one for one in status["endpoints"] if one.startswith("61.")).rpartition(":")
    assert victim.process is not None
    chosen: dict[str, Any] = {"variants": len(WORST), "connections": [40], "blocks": [BLOCKS], "proofs": [False]}
    if VARIANTS:
        chosen = {"variants": VARIANTS, "connections": [1, 40, 300], "blocks": [1, BLOCKS]}
    return Job(
        host=host,
        port=int(port),
        server=status["peer_id"],
        run=status["run_id"],
        pid=victim.process.pid,
        seed=SEED,
        sources=sources,
        seconds=2.0,
        **chosen,
    )


async def plays(job: Job, namespace: str) -> AsyncIterator[Played]:
    """Play in another namespace, in a separate process."""
    playing = await asyncio.create_subprocess_exec(
        *("ip", "netns", "exec", namespace, sys.executable, "-m", "tests.support.http2_abuse", json.dumps(asdict(job))),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert playing.stdout is not None
    try:
        async for line in playing.stdout:
            yield Played(**json.loads(line))
        assert await playing.wait() == 0
    finally:
        if playing.returncode is None:
            playing.kill()
            await playing.wait()
