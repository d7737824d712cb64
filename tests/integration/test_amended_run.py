"""Real daemons follow the operator's amendments: slower rounds, a pause, its end, a restart, a ban."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from peer import identity as identities
from peer.cli.main import peer
from peer.joining.reset import digest_of
from peer.lab.localswarm.processes import LOOPBACK, Daemon, start_bootstrap, start_peer
from peer.lab.localswarm.report import journal_events
from peer.observe.event_codec import read_lines
from peer.observe.events import (
    Amended,
    Evaluated,
    Joined,
    Refounded,
    RoundDue,
    RoundEnded,
    RoundMissed,
    SatOut,
    StateFetched,
)
from peer.run.home import Home, RunFolder
from peer.run.manifest import default_text, sign_text
from peer.run.overrides import apply_overrides
from peer.state.checkpoint import Checkpoint, checkpoint_bytes
from peer.state.sealed_state import OUTER
from peer.trainer.arena import read_counters
from tests.integration.test_daemons import SETTINGS, eventually, imbalance, trains_on

pytestmark = [pytest.mark.processes, pytest.mark.nightly]

ELEMENTS = 217_664
SYNC_EVERY_S = 3.0
PAGE = ("rounds", "val_loss", "total_rounds", "parameters")
"""Numbers on a peer's page that stay for some seconds."""


class Operator:
    """Runs the operator's commands of `peer`."""

    def __init__(self, manifest: Path, node: Daemon) -> None:
        self._manifest = manifest
        self._node = node

    async def amend(self, *words: str) -> None:
        """Run the command in a thread, because it has an event loop of its own."""
        arguments = ["manifest", "amend", str(self._manifest), *words, "--home", str(self._node.home)]
        result = await asyncio.to_thread(CliRunner().invoke, peer, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output

    async def serve_state(self, folder: Path) -> None:
        """Restart the node with a state that the operator names."""
        await self._node.stop(10.0)
        ticket = str(self._node.home / "ticket")
        node = ("bootstrap", str(self._manifest), "--host-maddrs", LOOPBACK, "--ticket-file", ticket)
        await self._node.start(*node, "--state", str(folder))


async def is_told(daemon: Daemon, what: str, phase: str = "", **wanted: Any) -> dict[str, Any]:
    """Wait until a peer's status shows a phase that begins with `phase`."""

    async def told() -> dict[str, Any] | None:
        assert daemon.running, daemon.log_tail()
        status = await daemon.status() or {}
        as_wanted = all(status.get(k) == v for k, v in wanted.items())
        return status if as_wanted and str(status.get("phase")).startswith(phase) else None

    return await eventually(f"{daemon.name} {what}", 180, told)


def folder_of(daemon: Daemon, run_id: bytes) -> RunFolder:
    return Home(daemon.home).run(run_id)


def newest(folder: RunFolder) -> torch.Tensor:
    """Return `outer_params` of the last checkpoint."""
    last = max(folder.checkpoints.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    return Checkpoint(last, {}, 0).load()[0]


def events_of(folder: RunFolder, kind: type) -> list[Any]:
    return [found[0] for found in read_lines(folder.journal) if found is not None and isinstance(found[0], kind)]


async def pauses_and_goes_on(operator: Operator, peers: list[Daemon]) -> None:
    await operator.amend("lr-scale", "0.5")
    await operator.amend("pause", "--reason", "lunch")
    for daemon in peers:
        phase = "paused by the operator since round "
        status = await is_told(daemon, "pauses", phase, status="paused", amendments=2)
        assert status["phase"].endswith(": lunch")
        assert "learning rate times 0.5" in status["amended"][0]
    await operator.amend("resume")
    for daemon in peers:
        await is_told(daemon, "goes on", status="training", amendments=3)
    await trains_on(peers)


async def numbers_agree(node: Daemon, peers: list[Daemon], run_id: bytes) -> None:
    """Compare the numbers of status and page with the journals' lines, the other ends' bytes and this test's clock."""
    for daemon in peers:
        deadline = time.monotonic() + 90
        while off := await differences(daemon, folder_of(daemon, run_id)):
            assert time.monotonic() < deadline, (daemon.name, off)
            await asyncio.sleep(0.2)  # a round ended between two looks

    async def arrived() -> bool:
        told = [await daemon.status() or {} for daemon in (node, *peers)]
        sent, received = (sum(one[f"bytes_{way}"] for one in told) for way in ("sent", "received"))
        return bool(abs(sent - received) <= 0.02 * received)

    await eventually("what was sent has arrived", 60, arrived)


async def differences(daemon: Daemon, folder: RunFolder) -> dict[str, Any]:
    """Return the values that differ between what a peer shows and what was counted, by name."""
    before, read = time.time(), read_counters(folder.path, 1)
    status = await daemon.status()
    assert status is not None, daemon.log_tail()
    page = await asyncio.to_thread(page_of, status["page"])
    after, read_again = time.time(), read_counters(folder.path, 1)
    told = [event for _, event in journal_events(folder)]
    ended = [event for event in told if isinstance(event, RoundEnded)]
    last, joined = ended[-1], next(event for event in told if isinstance(event, Joined))
    kinds = {"due": RoundDue, "missed": RoundMissed, "sat_out": SatOut}
    counted = {name: sum(isinstance(event, kind) for event in told) for name, kind in kinds.items()}
    evaluated = [[e.round, e.loss, e.bits_per_byte] for e in told if isinstance(e, Evaluated)]
    wanted = {
        "rounds": {name: n for name, n in (counted | Counter(event.outcome for event in ended)).items() if n},
        "paths": dict(Counter(event.path for event in ended if event.path)),
        "amendments": sum(isinstance(event, Amended) for event in told),
        "val_loss": evaluated[-1],
        "last_outcome": last.outcome,
        "last_seconds": round(last.seconds, 2),
    }
    off: dict[str, Any] = {name: (status[name], right) for name, right in wanted.items() if status[name] != right}
    off |= {name: (page["work"][name], status[name]) for name in PAGE if page["work"][name] != status[name]}
    if status["machine"]["joined_in_s"] != pytest.approx(joined.seconds, abs=0.01):
        off["joined_in_s"] = status["machine"]["joined_in_s"], joined.seconds
    came = sum(event.bytes_received for event in ended)
    came += sum(event.bytes for event in told if isinstance(event, StateFetched))
    if status["bytes_received"] != pytest.approx(came, rel=0.02):
        off["bytes_received"] = status["bytes_received"], came
    for way in ("sent", "received"):
        if page["bytes"][way] != status[f"bytes_{way}"]:
            off[f"page {way}"] = page["bytes"][way], status[f"bytes_{way}"]
        least = status[f"bytes_{way}"] + sum(status["control_bytes"][way].values())
        if not least <= status["line_bytes"][way] <= 1.5 * least or not status["line_bytes"]["measured"]:
            off[f"line_bytes {way}"] = status["line_bytes"], least
    for name in ("steps", "tokens", "seconds_training", "seconds_waiting"):
        if not getattr(read, name) <= status[name] <= getattr(read_again, name):
            off[name] = getattr(read, name), status[name], getattr(read_again, name)
    if not 0.0 < before - status["uptime_s"] - daemon.started_at < after - daemon.started_at:
        off["uptime_s"] = status["uptime_s"], after - daemon.started_at
    if status["next_due_in_s"] is None:
        return off | {"next_due_in_s": "between two rounds"}
    due = [at + status["next_due_in_s"] - status["papers"]["start"] for at in (before - 0.06, after + 0.06)]
    if due[0] // SYNC_EVERY_S == due[1] // SYNC_EVERY_S:
        off["next_due_in_s"] = status["next_due_in_s"], due
    return off


def page_of(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}api/snapshot", timeout=10) as answer:
        return dict(json.load(answer))


async def is_refounded(operator: Operator, peers: list[Daemon], run_id: bytes, where: Path) -> None:
    """Refound the run from three times the first peer's `outer_params`, and check that every peer gets that state.

    It is far from every peer's own, so a peer that keeps its own is noticed."""
    folders = [folder_of(daemon, run_id) for daemon in peers]
    old = newest(folders[0])
    state = 3.0 * old
    save_file({"outer_params": state, "outer_momentum": torch.zeros_like(state)}, where / OUTER)
    await operator.serve_state(where)
    digest = digest_of(state).hex()
    await operator.amend("refound", digest, "--in-rounds", "4")
    for daemon, folder in zip(peers, folders, strict=True):

        async def refounded(folder: RunFolder = folder) -> bool:
            return [event.digest for event in events_of(folder, Refounded)] == [digest]

        await eventually(f"{daemon.name} has the state", 180, refounded)
    await trains_on(peers)
    for daemon in peers:
        await daemon.stop(10.0)
    for folder in folders:
        last = max(folder.checkpoints.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
        disk_bytes = sum(file.stat().st_size for file in last.iterdir())
        assert disk_bytes == pytest.approx(checkpoint_bytes(ELEMENTS), rel=0.02), "as the consent says"
        now = newest(folder)
        assert (now - state).norm() < 0.1 * (now - old).norm()


async def is_banned(operator: Operator, daemon: Daemon, run_id: bytes, ticket: str) -> None:
    """Ban a peer while it runs, and check that it is refused when it returns."""
    await start_peer(daemon, ticket, threads=1, speed=0.2, min_peers=1)
    await is_told(daemon, "is back", status="training")
    banned = identities.load_or_create(Home(daemon.home).identity).peer_id
    await operator.amend("ban", banned, "--reason", "sends noise")
    for again in (False, True):
        if again:
            await start_peer(daemon, ticket, threads=1, speed=0.2, min_peers=1)
        async with asyncio.timeout(270):
            assert await daemon.wait() == 32, daemon.log_tail()
        assert "banned this peer: sends noise" in daemon.log_tail()
        assert len(events_of(folder_of(daemon, run_id), Amended)) == 5


async def scenario(home: Path) -> None:
    node = Daemon("bootstrap", home / "b")
    peers = [Daemon(f"peer {n}", home / f"p{n}") for n in (1, 2)]
    key = identities.load_or_create(Home(node.home).identity)
    signed = sign_text(apply_overrides(default_text(), SETTINGS), key, home / "run.toml")
    operator = Operator(home / "run.toml", node)
    try:
        ticket = await start_bootstrap(node, home / "run.toml", 1)
        for daemon in peers:
            page = ("--web", "127.0.0.1:0")
            await start_peer(daemon, ticket, threads=1, speed=0.2, min_peers=1, more=page)
        await trains_on(peers)
        await pauses_and_goes_on(operator, peers)
        await numbers_agree(node, peers, signed.run_id)
        await is_refounded(operator, peers, signed.run_id, home / "state")
        for daemon in peers:
            assert imbalance(daemon, signed, ELEMENTS) == 0, daemon.name
        await is_banned(operator, peers[1], signed.run_id, ticket)
    finally:
        for daemon in (*peers, node):
            await daemon.stop(10.0)


def test_the_operators_word_is_obeyed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    asyncio.run(scenario(tmp_path))
