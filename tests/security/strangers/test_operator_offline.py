"""A node with its own key runs a whole run without the operator's key, and the run accepts newcomers after the node is
gone."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from peer.lab.localswarm.processes import Daemon, start_bootstrap, start_peer
from tests.integration.test_daemons import eventually, exchanged
from tests.integration.test_ticket_is_enough import run

pytestmark = [pytest.mark.processes, pytest.mark.nightly]

SETTINGS = ("sync_every=3", "total_rounds=100000", "eval_every=1000", "batch=2", "context=32")
OFFLINE = ("--identity-path", "../safe/operator.key")


def papers_of(daemon: Daemon) -> list[str]:
    """Return the kinds of papers in a home."""
    (kept,) = (daemon.home / "runs").glob("*/papers.jsonl")
    return [json.loads(json.loads(line)["paper"])["kind"] for line in kept.read_text().splitlines()]


def operator_makes_a_run(folder: Path) -> None:
    """Create a run. The operator's key is in another folder, which is removed before the node starts."""
    safe = folder.parent / "safe"
    safe.mkdir()
    run(folder, "id", "new", "--operator", "../safe/operator.key")
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    run(folder, "manifest", "new", "run.toml", *OFFLINE, *settings)
    node = json.loads(run(folder, "id", "show", "--home", "b", "--json"))["peer_id"]
    run(folder, "manifest", "delegate", "run.toml", node, *OFFLINE)
    (safe / "operator.key").rename(safe / "away")


async def scenario(operator: Path, volunteers: Path) -> None:
    bootstrap = Daemon("bootstrap", operator / "b")
    first, second, newcomer = (Daemon(f"peer {number}", volunteers / f"p{number}") for number in (1, 2, 3))
    try:
        ticket = await start_bootstrap(bootstrap, operator / "run.toml", 2)
        status = await bootstrap.status()
        assert status is not None
        assert status["operators_key"] == "not on this node"
        node = status["peer_id"]
        for daemon in (first, second):
            await start_peer(daemon, ticket, threads=1, speed=0.2, min_peers=1, more=("--yes",))
        await have_exchanged(first, second)
        found = await first.status()
        assert found is not None
        assert found["papers"]["delegated_to"] == [node]
        await eventually("one remembers the other", 180, lambda: remembers(second, first))
        bootstrap.kill()
        await bootstrap.wait()
        remember(second, newcomer)
        await start_peer(newcomer, ticket, threads=1, speed=0.2, min_peers=1, more=("--yes",))
        await have_exchanged(newcomer)
        shown = await newcomer.status()
        assert shown is not None
        assert shown["papers"]["start"] == found["papers"]["start"] > 0
    finally:
        for daemon in (first, second, newcomer, bootstrap):
            await daemon.stop(10.0)


async def remembers(one: Daemon, other: Daemon) -> bool:
    """Return whether `one` has stored an address of `other`."""
    (known,) = (one.home / "runs").glob("*/directory.json")
    shown = await other.status()
    assert shown is not None
    return shown["peer_id"] in known.read_text()


def remember(one: Daemon, newcomer: Daemon) -> None:
    """Give the newcomer the addresses that `one` has stored, as a friend could. They do not depend on the dead node."""
    (known,) = (one.home / "runs").glob("*/directory.json")
    folder = newcomer.home / "runs" / known.parent.name
    folder.mkdir(parents=True)
    shutil.copy(known, folder)


async def have_exchanged(*peers: Daemon) -> None:
    async def have() -> bool:
        for daemon in peers:
            assert daemon.running, daemon.log_tail()
        return all([exchanged(await daemon.status()) for daemon in peers])

    await eventually("every peer has exchanged", 360, have)


def test_a_node_without_the_operators_key_runs_a_run_that_outlives_it(tmp_path: Path) -> None:
    operator, volunteers = tmp_path / "o", tmp_path / "v"
    operator.mkdir()
    operator_makes_a_run(operator)
    secret = (tmp_path / "safe" / "away").read_bytes()
    asyncio.run(scenario(operator, volunteers))
    for number in (1, 2, 3):
        kinds = papers_of(Daemon("peer", volunteers / f"p{number}"))
        assert sorted(kinds) == ["delegation", "digest", "start"]
    files = [path for path in operator.rglob("*") if path.is_file()]
    assert not [path for path in files if secret[4:36] in path.read_bytes()], "the operator's key is on no node"
