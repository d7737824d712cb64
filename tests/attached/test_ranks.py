"""A training loop of several ranks, which are real processes with gloo. A thread plays rank 0's daemon: see
rank_program.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.attached.ranks import Rank, check_ranks, own_rank
from peer.errors import RankLost, UsageError
from tests.attached.rank_program import BATCH, LENGTH, ROUNDS, STEPS

pytestmark = pytest.mark.processes

DEADLINE_S = 240.0
CASES = [
    pytest.param("plain", 1, marks=pytest.mark.nightly),
    pytest.param("compiled", 1, marks=pytest.mark.nightly),
    pytest.param("tied", 1, marks=pytest.mark.nightly),
    ("ddp", 2),
    pytest.param("fsdp2", 2, marks=pytest.mark.nightly),
    ("fsdp2", 3),
]
"""How the model is wrapped, and the number of ranks."""


def start(case: str, world: int, folder: Path) -> list[subprocess.Popen[bytes]]:
    (folder / "store").unlink(missing_ok=True)
    program = [sys.executable, "-m", "tests.attached.rank_program", case]
    root = Path(__file__).parents[2]
    ranks = list[subprocess.Popen[bytes]]()
    for rank in range(world):
        command = [*program, str(rank), str(world), str(folder)]
        with (folder / f"errors-{rank}.txt").open("wb") as errors:
            ranks.append(subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=errors))
    return ranks


def play(case: str, world: int, folder: Path) -> list[dict[str, Any]]:
    """Return the result of each rank, or the exit code of a rank that printed none."""
    ranks = start(case, world, folder)
    found = list[dict[str, Any]]()
    try:
        for rank, process in enumerate(ranks):
            output, _ = process.communicate(timeout=DEADLINE_S)
            lines = output.splitlines()
            errors = (folder / f"errors-{rank}.txt").read_text()
            found.append({"code": process.returncode, "errors": errors, **json.loads(lines[-1] if lines else b"{}")})
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return found


@pytest.mark.parametrize(("how", "world"), CASES)
def test_snapshots_and_merges_are_exact_on_all_ranks(tmp_path: Path, how: str, world: int) -> None:
    ranks = play(f"exact:{how}", world, tmp_path)
    for rank in ranks:
        assert rank.get("first"), rank["errors"]
        assert rank["exact"] == rank["merged"] == [True] * ROUNDS
    states = [[ROUNDS, ROUNDS * STEPS * BATCH * LENGTH, 0], *[rank["states"][-1][:3] for rank in ranks]]
    assert states == states[:1] * (world + 1), "all ranks show the same place, and the tokens of all"
    for steps, tokens, loss in ranks[0]["works"]:
        assert tokens == steps * BATCH * LENGTH, "the tokens of all ranks count"
        assert 0 < loss < 10


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_two_ranks_are_one_with_twice_the_batch(tmp_path: Path, how: str) -> None:
    finals = list[torch.Tensor]()
    for name, world in (("plain", 1), (how, 2)):
        folder = tmp_path / name
        folder.mkdir()
        play(f"same:{name}", world, folder)
        first, last = torch.tensor(json.loads((folder / "final.json").read_text()))
        finals.append(last)
    assert float((finals[0] - first).abs().max()) > 1e-2, "training moves the params"
    assert float((finals[0] - finals[1]).abs().max()) < 1e-3


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["fsdp2", "ddp"])
def test_rank_0_has_the_live_params_of_all_ranks(tmp_path: Path, how: str) -> None:
    for rank in play(f"live:{how}", 2, tmp_path):
        assert rank.get("seen"), rank["errors"]
        assert set(rank["seen"]) == {1.0}, "on all ranks, and also when the run is over"
        assert rank["halved"], "the result is merged as it was given"


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_each_rank_restores_its_part_of_a_checkpoint(tmp_path: Path, how: str) -> None:
    assert all(rank.get("exact") == [True] * 3 for rank in play(f"save:{how}", 2, tmp_path))
    files = {path.name for path in (tmp_path / "saved").iterdir()}
    parts = {"1.loop.json", "1.loop.safetensors"} if how == "fsdp2" else set[str]()
    assert files == {"loop.json", "loop.safetensors"} | parts
    for rank in play(f"restore:{how}", 2, tmp_path):
        assert rank.get("params"), rank["errors"]
        assert rank["optimizer"]
    if how == "fsdp2":
        for rank in play("restore:fsdp2", 3, tmp_path):  # restored with other tokens and another number of ranks
            assert rank.get("run"), rank["errors"]


@pytest.mark.nightly
@pytest.mark.parametrize("dead", [0, 1])
def test_a_dead_rank_ends_the_others(tmp_path: Path, dead: int) -> None:
    ranks = play(f"dead:ddp-{dead}", 2, tmp_path)
    assert ranks[dead]["code"] == 9
    assert ranks[1 - dead].get("raised") == ["RankLost", f"rank {dead} ended"], ranks[1 - dead]["errors"]
    assert RankLost.retry


@pytest.mark.nightly
def test_another_call_on_one_rank_is_named_on_all(tmp_path: Path) -> None:
    for rank in play("mismatch:ddp", 2, tmp_path):
        assert rank.get("raised") == ["UsageError", "rank 1 called evaluate() where rank 0 called step()"]


@pytest.mark.nightly
def test_a_difference_on_one_rank_ends_join_on_all(tmp_path: Path) -> None:
    for rank in play("other_model", 2, tmp_path):
        found = "rank 1: head.weight is [101, 8] in your model and [101, 7] in the run"
        assert rank.get("error") == found, rank["errors"]


def test_what_is_not_supported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    check_ranks(model, [optimizer], 2, has_loss=False)
    with pytest.raises(UsageError, match="no loss= with 2 ranks"):
        check_ranks(model, [optimizer], 2, has_loss=True)
    monkeypatch.setattr(torch.optim.SGD, "__module__", "torch.distributed.optim.any")
    with pytest.raises(UsageError, match="SGD keeps parts of its state on other ranks"):
        check_ranks(model, [optimizer], 2, has_loss=False)
    assert own_rank() is None
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=r"torch\.distributed is not initialized"):
        own_rank()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    assert own_rank() == Rank(3, 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="4 ranks are on several hosts: 2 of them are on this one"):
        own_rank()


@pytest.mark.nightly
def test_what_is_not_supported_is_named_on_each_rank(tmp_path: Path) -> None:
    for rank in play("refused:ddp", 2, tmp_path):
        assert "tensor parallelism" in rank.get("tensor parallel", rank["errors"])
        assert "FSDP 1" in rank["fsdp1"]
        assert "ZeroRedundancyOptimizer" in rank["zero"]
        assert "loss=" in rank["loss"]
        assert "several hosts" in rank["hosts"]
