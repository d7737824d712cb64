"""The golden files of all names that appear in data. `python -m tests.golden.freeze` compares the files that need no
swarm. `--write` writes all files, and `--write NAME …` only the named ones.

Names, types, units and order are frozen, because other versions of this program and other programs read them; sentences
for people are not. A change of a frozen name needs a reason in the commit message."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peer.observe.totals import replay
from peer.run.manifest import load_signed
from peer.run.model_layout import layout_for
from peer.run.resolve import resolve
from peer.run.statements.files import load
from peer.run.statements.log import StatementLog
from peer.state.checkpoint import CheckpointStore
from peer.trainer.arena import read_counters
from tests.golden import live, names
from tests.golden.shapes import as_text, differences, plain
from tests.golden.trainer_line import overhear

FROZEN = Path(__file__).parent / "frozen"
LINES = FROZEN / "journal.jsonl"
RUN = FROZEN / "run"
"""A peer's run folder as written by a daemon."""
KEPT = "run"
PRESETS = {"pair": "noloco", "group": "diloco"}


def control(folder: Path) -> Any:
    return {
        "requests of the command line": live.commands_asked(folder),
        "refused": live.control_codes(folder),
        "paused by both": live.paused_by_both(),
    }


def kept_run(folder: Path) -> Any:
    """Return what this program reads from the stored run folder."""
    signed = load_signed(RUN / "manifest.toml")
    manifest = signed.manifest
    layout = layout_for(manifest.model, resolve(manifest.sync))
    checkpoint, skipped = CheckpointStore(RUN / "checkpoints").latest(signed.run_id, layout.digest())
    assert checkpoint is not None, skipped
    totals, damaged = replay(RUN / "journal.jsonl")
    log = StatementLog(signed.run_id, manifest.operator)
    load(RUN / "amendments.jsonl", log)
    return {
        "run id": signed.run_id.hex(),
        "layout": layout.digest().hex(),
        "checkpoint": [checkpoint.folder.name, checkpoint.nbytes, checkpoint.facts],
        "counters": asdict(read_counters(RUN, len(layout.fragments))),
        "sums": totals.to_json(),
        "damaged lines": damaged,
        "head of the amendments": log.head.hex(),
    }


STILL: dict[str, Callable[[Path], Any]] = {
    "journal": lambda folder: names.journal(),
    "metrics": lambda folder: names.metrics(),
    "wire": lambda folder: names.wire(),
    "wire_bytes": names.wire_bytes,
    "errors": lambda folder: names.errors(),
    "manifest": lambda folder: names.manifest(),
    "commands": lambda folder: names.commands(),
    "files": lambda folder: names.files(),
    "trainer_line": overhear,
    "run_view": names.run_view,
    "control": control,
    "run": kept_run,
}
"""Functions for the golden files that need no swarm, by name."""


def path_of(name: str) -> Path:
    return FROZEN / f"{name}.json"


def frozen(name: str) -> Any:
    return json.loads(path_of(name).read_text())


def changes(name: str, now: Any) -> list[str]:
    """Return the differences from a golden file."""
    return differences(frozen(name), plain(now), name)


def frozen_swarm(role: str) -> live.Seen:
    return live.Seen(**frozen(f"swarm_{role}"))


def write(wanted: Collection[str]) -> None:
    """Write golden files. `wanted`: their names; empty: all except the stored run folder, which an older version
    wrote."""
    with tempfile.TemporaryDirectory() as scratch:
        for role, preset in PRESETS.items():
            if not wanted or f"swarm_{role}" in wanted:
                _write_swarm(live.Swarm(_folder(scratch, role), preset))
        if KEPT in wanted:
            swarm = live.Swarm(_folder(scratch, "kept"), PRESETS["pair"])
            asyncio.run(live.watched(swarm, None))
            live.keep_run(swarm, RUN)
        if not wanted or "journal" in wanted:
            LINES.write_bytes(names.journal_lines())
        for name, collect in STILL.items():
            if not wanted or name in wanted:
                path_of(name).write_text(as_text(plain(collect(_folder(scratch, name)))) + "\n")


def _folder(scratch: str, name: str) -> Path:
    folder = Path(scratch, f"of_{name}")
    folder.mkdir()
    return folder


def _write_swarm(swarm: live.Swarm) -> None:
    seen = asyncio.run(live.watched(swarm, None))
    path_of(f"swarm_{swarm.role}").write_text(as_text(asdict(seen)) + "\n")


def main() -> None:
    if "--write" in sys.argv:
        write(sys.argv[sys.argv.index("--write") + 1 :])
        return
    found: list[str] = []
    for name, collect in STILL.items():
        with tempfile.TemporaryDirectory() as scratch:
            found += changes(name, collect(Path(scratch)))
    if found:
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main()
