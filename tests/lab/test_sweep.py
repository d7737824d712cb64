"""A sweep: its grid, its result files, and which cells run again. A script of the test stands in for the
comparisons."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from peer.errors import SwarmFailed, UsageError
from peer.lab import sweep
from peer.lab.sweep import play, read_grid, result_of, sweep_table, swept

DEADLINE_S = 60.0
GRID = """
methods = ["gossip", "own.toml"]
seeds = [0, 1]
peers = 2
steps = 40
virtual = true
[set]
sync_every = [10, 20]
"sync.clock" = ["steps"]
"""
PLAYED = """
import json, sys
words = sys.argv[1:]
seed, every = int(words[words.index("--seed") + 1]), [one for one in words if one.startswith("sync_every=")][0]
if "own.toml" in words[1] and seed == 1:
    raise SystemExit("error: no room")
loss = (3.0 if words[1] == "gossip" else 4.0) + seed + int(every.split("=")[1]) / 100
mark = {"bytes": 2e6, "seconds": 60.0, "loss": loss}
print(json.dumps({"methods": [{"loss": loss, "curve": [mark]}]}))
"""
HANGS = "import time; print('here', file=__import__('sys').stderr, flush=True); time.sleep(600)"


def grid_in(folder: Path, text: str = GRID) -> Path:
    (folder / "grid.toml").write_text(text)
    return folder / "grid.toml"


def replaced(monkeypatch: pytest.MonkeyPatch, script: str) -> list[asyncio.subprocess.Process]:
    """Replace the comparisons by a script. Return the list of started processes."""
    started = list[asyncio.subprocess.Process]()

    async def start(module: str, *words: str, **how: Any) -> asyncio.subprocess.Process:
        started.append(await asyncio.create_subprocess_exec(sys.executable, "-c", script, *words, **how))
        return started[-1]

    monkeypatch.setattr(sweep, "start_python", start)
    return started


def test_every_combination_is_a_cell_and_the_seeds_take_turns(tmp_path: Path) -> None:
    cells = read_grid(grid_in(tmp_path))
    assert [(cell.seed, cell.method, dict(cell.settings)["sync_every"]) for cell in cells] == [
        (seed, method, every) for seed in (0, 1) for method in ("gossip", "own.toml") for every in (10, 20)
    ]
    assert " ".join(cells[0].words) == (
        'compare gossip --peers 2 --seed 0 --json --virtual --steps 40 --set sync_every=10 --set sync.clock="steps"'
    )
    assert cells[2].words[1] == str(tmp_path / "own.toml"), "a path is relative to the grid"
    assert len({cell.key for cell in cells}) == len(cells)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("methods = [", "is no grid"),
        ("methods = []\nseeds = [0]", "methods: List should have at least 1 item"),
        ("methods = ['gossip']\nseeds = [0]\nrounds = 3", "a grid has no key 'rounds'"),
        ("methods = ['gossip']\nseeds = [0]\n[set]\nlr = []", "set.lr: List should have at least 1 item"),
        (f"methods = ['a', 'b']\nseeds = {list(range(1000))}\n[set]\nlr = [1, 2, 3, 4, 5, 6]", "12,000 cells"),
    ],
)
def test_what_is_no_grid_is_refused(tmp_path: Path, text: str, found: str) -> None:
    with pytest.raises(UsageError, match=found) as raised:
        read_grid(grid_in(tmp_path, text))
    assert raised.value.fix


@pytest.mark.processes
def test_a_cell_that_failed_is_named_and_only_it_is_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, said = replaced(monkeypatch, PLAYED), list[str]()
    cells = read_grid(grid_in(tmp_path))
    for expected in (len(cells), 2):
        started.clear()
        with pytest.raises(SwarmFailed, match=r"2 of 8 cells failed, the first: own.toml, .*: error: no room"):
            asyncio.run(play(cells, tmp_path, 2, said.append))
        assert len(started) == expected
    groups = list(swept(cells, tmp_path))
    assert [(group.method, dict(group.settings)["sync_every"], group.losses) for group in groups] == [
        ("gossip", 10, (3.1, 4.1)),
        ("gossip", 20, (3.2, 4.2)),
        ("own.toml", 10, (4.1,)),
        ("own.toml", 20, (4.2,)),
    ]
    assert groups[0].half_width == pytest.approx(12.706 * 0.5, rel=1e-3), "Student's t with one degree of freedom"
    assert groups[2].half_width is None
    lines = sweep_table(groups).splitlines()
    assert lines[0].split() == ["method", "sync_every", "sync.clock", "loss", "+-", "seeds", "MB", "sent", "seconds"]
    assert lines[3].split() == ["own.toml", "10", "steps", "4.1000", "1", "of", "2", "2", "60"]


def test_a_damaged_result_is_played_again(tmp_path: Path) -> None:
    cell = read_grid(grid_in(tmp_path))[0]
    for content in ("", "[]", json.dumps({"report": {"methods": []}})):
        (tmp_path / f"{cell.key}.json").write_text(content)
        assert result_of(cell, tmp_path) is None


@pytest.mark.processes
def test_a_sweep_that_is_stopped_ends_its_swarms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = replaced(monkeypatch, HANGS)
    monkeypatch.setattr(sweep, "ENDING_S", 0.2)

    async def main() -> None:
        playing = asyncio.create_task(play(read_grid(grid_in(tmp_path)), tmp_path, 2, lambda line: None))
        async with asyncio.timeout(DEADLINE_S):
            while len(started) < 2:
                await asyncio.sleep(0.01)
        playing.cancel()
        await asyncio.wait({playing})
        assert playing.cancelled()

    asyncio.run(main())
    assert [process.returncode is not None for process in started] == [True, True]
