"""A home that was copied to a second machine: two real daemons with one key in one run."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

from peer import identity as identities
from peer.errors import KeyInUse
from peer.lab.localswarm.processes import Daemon, start_bootstrap, start_peer
from peer.run.home import Home
from peer.run.manifest import default_text, sign_text
from peer.run.overrides import apply_overrides
from tests.integration.test_daemons import SETTINGS, eventually


def shared(daemon: Daemon) -> list[dict[str, Any]]:
    path = next((daemon.home / "runs").glob("*/journal.jsonl"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["kind"] == "key_shared"]


async def scenario(folder: Path) -> None:
    bootstrap, first, copy = (Daemon(name, folder / name) for name in ("bootstrap", "first", "copy"))
    operator = identities.load_or_create(Home(bootstrap.home).identity)
    sign_text(apply_overrides(default_text(), SETTINGS), operator, folder / "run.toml")
    first.home.mkdir(mode=0o700)
    identities.load_or_create(Home(first.home).identity)
    shutil.copytree(first.home, copy.home)
    try:
        ticket = await start_bootstrap(bootstrap, folder / "run.toml", 1)
        await start_peer(first, ticket, threads=1, speed=0.2, min_peers=1)

        async def known() -> bool:
            return bool(((await first.status()) or {}).get("endpoints"))

        await eventually("the first has its place in the network", 180, known)
        await start_peer(copy, ticket, threads=1, speed=0.2, min_peers=1)
        async with asyncio.timeout(120):
            assert await copy.wait() == KeyInUse.exit_code, copy.last_words()
        assert first.running
        said = copy.last_words()
        assert "this key is in use on another machine since 20" in said
        assert f"make a new one with: peer id new --home {copy.home}" in said
        assert "Traceback" not in copy.log.read_text()
        assert [line["stops"] for line in shared(copy)] == [True]
        assert [line["stops"] for line in shared(first)] in ([False], [])
    finally:
        for daemon in (copy, first, bootstrap):
            await daemon.stop(10.0)


def test_the_daemon_of_a_copied_home_stops_and_the_first_goes_on(tmp_path: Path) -> None:
    asyncio.run(scenario(tmp_path))
