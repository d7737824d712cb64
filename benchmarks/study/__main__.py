"""Which method of pairs should be the default, and how much of a group's gain does it keep?

Promise: none by number; the default is worth choosing. Bound: the method that the study found closes 60 % of the gap
from tuned `none` to tuned `diloco`. PROTOCOL.md in this folder says what is compared and how it is decided. About ten
hours of a core.

    python -m benchmarks.study [--pages FOLDER --minutes N] [--cells 1 3] [--rows 16] [--json FILE] [--results]

Without minutes the runs that are kept are summed up, and nothing is played. With them, runs are played and appended to
results/study/runs.jsonl one by one, and none is played twice. No batch of runs begins after so many minutes. Two
processes may play at once, as long as their cells differ."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.result import RESULTS, Benchmark, Figure, Table, options, product_commit, publish
from benchmarks.study.methods import CHOSEN, DEFAULT, METHODS
from benchmarks.study.plan import CELLS, Records, tuned, tuning, wanted
from benchmarks.study.play import TRAIN, StudyCell, StudyRun, play
from benchmarks.study.verdict import Interval, complete, decision, differences, gap_closed, over_cells, scores
from peer.run.sections import DataSection
from peer.trainer.data import Corpus, load_corpus

ABOUT = Benchmark(
    "study",
    "Which method of pairs should be the default, and how much of a group's gain does it keep?",
    "bound: the method that was found closes 60 % of the gap from no exchange to a group",
)
RUNS = RESULTS / "study" / "runs.jsonl"
DIGESTS = {
    "pages": "e9a67da81c2c70f42db8bca9d2a909a8c53f012db0e10f9f9bfc4ed35bbdb871",
    "stdlib": "d19f98b8ef494fdba3f4f9c32fd642abb9645cf554336655b79205f154b04cae",
}
"""BLAKE3 of the training text and the hold-out."""
WANTED = 60.0
"""Percent of the gap."""


@cache
def corpus_of(name: str, pages: Path | None) -> Corpus:
    """Read a corpus. Raises DataError when it is not the protocol's, or no folder is given for the manual pages."""
    kind = "stdlib" if name == "stdlib" else "text"
    section = DataSection(kind=kind, digest=DIGESTS[name])
    return load_corpus(section, None if pages is None else str(pages), TRAIN.context)


def kept(file: Path = RUNS) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def next_batch(records: Records, cells: Sequence[StudyCell], rows: int) -> list[StudyRun]:
    """Return runs of one cell that together have so many peers at most, but one at least. None: all is played."""
    for cell in cells:
        if runs := wanted(records, cell):
            return runs[: max(1, rows // cell.peers)]
    return []


def play_on(pages: Path | None, cells: Sequence[StudyCell], minutes: float, rows: int) -> None:
    """Play what is missing, and append each batch to the file of runs."""
    ends = time.monotonic() + 60 * minutes
    RUNS.parent.mkdir(parents=True, exist_ok=True)
    while time.monotonic() < ends and (batch := next_batch(kept(), cells, rows)):
        played = play(batch, corpus_of(batch[0].cell.corpus, pages))
        with RUNS.open("a") as file:
            for one in played:
                file.write(json.dumps({**one, "commit": product_commit()}) + "\n")
                told = (one[name] for name in ("corpus", "peers", "every", "method", "lr", "seed", "loss", "seconds"))
                print(*told, flush=True)


def cell_table(records: Records, cell: StudyCell) -> Table | None:
    """Return what is known of a cell. None: no method is tuned."""
    of, rows = scores(records, cell), []
    for method, losses in of.items():
        if tried := tuning(records, cell, method):
            difference = Interval.of(list(differences(of, method).values()))
            closed = gap_closed(of, method)
            mean = sum(losses.values()) / len(losses) if losses else None
            numbers = [difference.mean, difference.half, closed.mean, closed.half]
            rows.append([method, tuned(records, cell, method), min(tried.values()), len(losses), mean, *numbers])
    heads = ["", "lr", "tuning loss", "scores", "loss", f"over {DEFAULT}, %", "+-", "of the gap, %", "+-"]
    return Table(f"{cell.corpus}, {cell.peers} peers, {cell.every} steps a round", heads, rows) if rows else None


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--pages", type=Path, metavar="FOLDER", help="the manual pages: see PROTOCOL.md")
    parser.add_argument("--minutes", type=float, default=0.0, help="begin no run after so many")
    numbers = range(1, len(CELLS) + 1)
    parser.add_argument("--cells", type=int, nargs="+", choices=numbers, default=numbers, help="play these alone")
    parser.add_argument("--rows", type=int, default=16, help="peers of all runs that are played together")
    given = parser.parse_args()
    torch.set_num_threads(1)
    play_on(given.pages, [CELLS[number - 1] for number in given.cells], given.minutes, given.rows)
    records = kept()
    cells = {cell: scores(records, cell) for cell in CELLS}
    done = {cell: of for cell, of in cells.items() if complete(of)}
    figures = []
    for cell, of in done.items():
        name = f"{cell.corpus}, {cell.peers} peers, {cell.every} steps: gap that"
        figures.append(Figure(f"{name} {CHOSEN} closes", "%", gap_closed(of, CHOSEN).mean, at_least=WANTED))
        figures.append(Figure(f"{name} {DEFAULT} closes", "%", gap_closed(of, DEFAULT).mean))
    found = [over_cells(list(done.values()), method) for method in METHODS]
    rows = [[name, len(done), one.mean, one.half] for name, one in zip(METHODS, found, strict=True) if name != DEFAULT]
    whole = Table(decision(list(done.values())), ["", "cells", "over noloco, %", "+-"], rows)
    tables = [whole if done else None, *(cell_table(records, cell) for cell in CELLS)]
    publish(given, ABOUT, figures, *(one for one in tables if one is not None))


if __name__ == "__main__":
    main()
