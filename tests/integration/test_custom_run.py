"""A run of a custom model is served, fetched by ticket, and refused by the built-in training loop."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from peer.attached.found import FoundedRun, found
from peer.identity import load, load_or_create
from peer.lab.localswarm.processes import Daemon, start_bootstrap
from peer.run.admission.invitation import Invitation
from peer.run.manifest import load_signed
from tests.support.custom_run import small_cnn

pytestmark = pytest.mark.processes

COMMAND_S = 120.0


async def run(*command: object) -> tuple[int, str]:
    """Run a command of `peer`; return its exit code and what it printed."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "peer", *map(str, command)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(COMMAND_S):
            printed, _ = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert child.returncode is not None
    return child.returncode, printed.decode()


async def scenario(made: FoundedRun, folder: Path) -> None:
    node = Daemon("bootstrap", made.manifest.parent)
    key = made.manifest.parent / "identity.key"
    volunteer = load_or_create(folder / "volunteer" / "identity.key")
    invitation = Invitation.make(
        load(key), load_signed(made.manifest).run_id, volunteer.peer_id, int(time.time()) + 3600
    )
    try:
        ticket = await start_bootstrap(node, made.manifest, 1)
        (code, exported), (refused, why) = await asyncio.gather(
            run("export", ticket, folder / "out", "--format", "safetensors", "--identity-path", key),
            run(
                *("join", ticket, "--home", folder / "volunteer", "--yes", "--no-port-mapping", "--no-lan"),
                *("--invitation", invitation.encode()),
            ),
        )
        status = await node.status()
        said = node.log.read_text()
    finally:
        await node.stop(10.0)
    assert code == 0, exported
    assert "the card shows no loss: not measured: the model's code is known to its users" in exported
    assert refused == 23, why
    assert "trains a model of its users' own (CNN): its code is not here" in why
    assert "with peer.join(TICKET, model, optimizer)" in why
    assert status is not None
    assert status["kept"]["state"] is None
    assert "no state is evaluated here" in said
    assert "others join in their own training loops" in said


def test_a_node_serves_a_model_without_its_code(tmp_path: Path) -> None:
    model = small_cnn()
    made = found(model, tmp_path / "run", title="CNN")
    asyncio.run(scenario(made, tmp_path))
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert tensors.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(tensors[name], parameter) for name, parameter in model.named_parameters())
