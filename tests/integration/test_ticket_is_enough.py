"""A ticket must suffice: model, tokenizer and data come from the swarm, and remain available when the operator's node
is gone."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from peer.lab.localswarm.processes import Daemon, start_bootstrap, start_peer
from tests.integration.test_daemons import eventually, exchanged

pytestmark = [pytest.mark.processes, pytest.mark.nightly]

GPT2 = {"model_type": "gpt2", "vocab_size": 400, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
SETTINGS = ("sync_every=3", "total_rounds=100000", "eval_every=5", "eval_windows=8", "batch=2", "context=32")
COMMAND_S = 300.0


def run(folder: Path, *command: str) -> str:
    """Run a command of `peer` in the folder; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "peer", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def operator_makes_a_run(folder: Path) -> None:
    texts = folder / "texts"
    texts.mkdir()
    for source in sorted(Path(json.__file__).parents[1].glob("[a-c]*.py")):
        (texts / source.name).write_bytes(source.read_bytes())
    (folder / "gpt2.json").write_text(json.dumps(GPT2))
    run(folder, "tokenizer", "train", "texts", "--vocab", "400", "--out", "tokenizer.json")
    run(folder, "data", "build", "texts", "--tokenizer", "tokenizer.json", "--out", "data")
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    made = ("--model", "gpt2.json", "--tokenizer", "tokenizer.json", "--data", "data")
    run(folder, "manifest", "new", "run.toml", "--home", "b", *made, *settings)


async def scenario(operator: Path, volunteers: Path) -> None:
    bootstrap = Daemon("bootstrap", operator / "b")
    peers = [Daemon(f"peer {number}", volunteers / f"p{number}") for number in (1, 2)]
    try:
        ticket = await start_bootstrap(bootstrap, operator / "run.toml", 1, data=operator / "data")
        for daemon in peers:
            await start_peer(daemon, ticket, threads=1, speed=0.2, min_peers=1, more=("--yes",))
        await all_exchange(peers, 1)
        await asyncio.to_thread(a_guest_exports_the_model, volunteers, ticket)
        bootstrap.kill()
        await bootstrap.wait()
        counts = [exchanged(await daemon.status()) for daemon in peers]
        await all_exchange(peers, max(counts) + 2)
    finally:
        for daemon in (*peers, bootstrap):
            await daemon.stop(10.0)


def a_guest_exports_the_model(folder: Path, ticket: str) -> None:
    """Export the model of the live run by ticket, without taking part. The cache then serves a second command."""
    shared = ("--home", "guest", "--json")
    exported = json.loads(run(folder, "export", ticket, "model", "--donors", "2", *shared))
    assert exported["parameters"] == 39296
    assert exported["loss"] < 6.5
    names = {path.name for path in (folder / "model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
    evaluated = json.loads(run(folder, "eval", ticket, *shared))
    assert evaluated["tokens"] == 8 * 32
    assert evaluated["loss"] < 6.5
    assert not (folder / "guest" / "identity.key").exists()


async def all_exchange(peers: list[Daemon], rounds: int) -> None:
    async def have() -> bool:
        for daemon in peers:
            assert daemon.running, daemon.log_tail()
        return all([exchanged(await daemon.status()) >= rounds for daemon in peers])

    await eventually(f"every peer exchanged {rounds} rounds", 360, have)


def journal_of(daemon: Daemon) -> list[dict[str, Any]]:
    path = next((daemon.home / "runs").glob("*/journal.jsonl"))
    return [json.loads(line) for line in path.read_text().splitlines()]


def place(cursor: str) -> tuple[int, ...]:
    return tuple(int(part) for part in cursor.split("."))


def test_peers_with_a_ticket_train_a_foreign_model_on_shards_of_the_swarm(tmp_path: Path) -> None:
    operator, volunteers = tmp_path / "o", tmp_path / "v"
    operator.mkdir()
    operator_makes_a_run(operator)
    asyncio.run(scenario(operator, volunteers))
    index = json.loads((operator / "data" / "index.json").read_text())
    shard = index["train"][0]["digest"]
    for number in (1, 2):
        daemon = Daemon(f"peer {number}", volunteers / f"p{number}")
        assert (daemon.home / "artifacts" / shard).read_bytes() == (operator / "data/train-00000.tokens").read_bytes()
        ended = [line for line in journal_of(daemon) if line["kind"] == "round_ended"]
        assert ended
        assert all(place(line["data_from"]) < place(line["data_to"]) or line["steps"] == 0 for line in ended), ended
        assert not [line for line in journal_of(daemon) if line["kind"] == "shard_skipped"]
