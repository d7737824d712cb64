"""Draw the plots of what joining is worth, from the runs that `benchmarks.worth` kept.

    python -m benchmarks.worth_plots [--out DIR]

Nothing is played. Files: `peers.svg`, `length.svg`, `every.svg`, `batch.svg` and `rate.svg`, each with the cells that
differ from the default one in that alone. Bars are intervals of 95 % over three seeds."""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.worth import RUNGS, CellResult, interval, kept, name_of, rate, results_of, run_of, tuning
from benchmarks.worth_runs import SINGLE, WorthRun

IMAGES = Path(__file__).parents[1] / "docs" / "images"
LOOKS = {
    "ddp": ("#000000", "--", "s"),
    "gossip": ("#0072b2", "-", "o"),
    "diloco": ("#d55e00", "-", "^"),
    "single": ("#cc79a7", ":", "x"),
}
"""Colour, line style and marker of each method, distinguishable for colour-blind readers (Okabe and Ito)."""
OTHERS = ("#009e73", "-.", "v")
STRENGTH_BY_BATCH = {2: 0.35, 4: 0.65, 8: 1.0}
"""Batch -> opacity of the colour."""
LENGTHS = (200, 400, 800, 1600, 3200, 6400)
OFTEN = range(20, 41)
"""Steps between two exchanges of the cells that are drawn by length."""
Of = Callable[[WorthRun], float]


def plain(run: WorthRun) -> bool:
    return not (run.start or run.own or run.outer) and run.bend == 1 and run.text == "stdlib"


def draw(
    axes: Axes, results: Iterable[CellResult], along: Of, alpha: float = 1.0, label: str = "", of_best: bool = False
) -> None:
    """Draw the speed-up of each method against one property of its cells, given by `along`. `of_best`: the speed-up
    over `single` with its best batch instead of the same batch."""
    axes.axhline(1, color="#999999", lw=0.8)
    for method in dict.fromkeys(one.run.method for one in results):
        colour, line, mark = LOOKS.get(method, OTHERS)
        of = [one for one in results if one.run.method == method]
        points = sorted((along(one.run), *interval(one.of_best if of_best else one.speed_ups)) for one in of)
        known = [(x, mean, half or 0.0) for x, mean, half in points if mean is not None]
        if known:
            x, mean, half = zip(*known, strict=True)
            axes.errorbar(
                x, mean, half, color=colour, ls=line, marker=mark, capsize=3, alpha=alpha, label=method + label
            )


def finish(axes: Axes, title: str, x: str, *, log: bool, ticks: Sequence[float] = ()) -> None:
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel("effective speed-up")
    if log:
        axes.set_xscale("log", base=2)
    if ticks:
        axes.set_xticks(list(ticks), [f"{one:g}" for one in ticks])
        axes.minorticks_off()
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)


def by_peers(axes: Axes, swarms: Sequence[CellResult]) -> None:
    found = [one for one in swarms if (one.run.every, one.run.steps, one.run.batch) == (20, 1600, 4)]
    counts = sorted({one.run.peers for one in found} | {1, 2, 4})
    axes.plot(counts, counts, color="#999999", ls=":", label="as many as peers")
    draw(axes, found, lambda run: run.peers, of_best=True)
    finish(axes, "80 rounds of 20 steps, batch 4, against the best batch alone", "peers", log=True, ticks=counts)


def by_length(axes: Axes, swarms: Sequence[CellResult]) -> None:
    found = [one for one in swarms if one.run.peers == 4 and one.run.every in OFTEN]
    for batch in sorted({one.run.batch for one in found}):
        of = [one for one in found if one.run.batch == batch]
        draw(axes, of, lambda run: run.steps, STRENGTH_BY_BATCH.get(batch, 1.0), f", batch {batch}")
    steps = {400, 1600, *(one.run.steps for one in found)}
    ticks = [ticked for ticked in LENGTHS if min(steps) <= ticked <= max(steps)]
    finish(axes, "4 peers, 20 to 40 steps between two exchanges", "inner steps of a peer", log=True, ticks=ticks)


def by_every(axes: Axes, swarms: Sequence[CellResult]) -> None:
    found = [one for one in swarms if one.run.peers == 4 and one.run.method != "ddp"]
    for steps, batch in sorted({(one.run.steps, one.run.batch) for one in found}):
        of = [one for one in found if (one.run.steps, one.run.batch) == (steps, batch)]
        if len({one.run.every for one in of}) > 1:
            draw(axes, of, lambda run: run.every, STRENGTH_BY_BATCH[batch], f", {steps} steps of batch {batch}")
    every = sorted({one.run.every for one in found})
    finish(axes, "4 peers", "inner steps between two exchanges", log=True, ticks=every)


def by_batch(axes: Axes, swarms: Sequence[CellResult]) -> None:
    found = [one for one in swarms if (one.run.peers, one.run.every, one.run.steps) == (4, 20, 1600)]
    draw(axes, found, lambda run: run.batch)
    batches = sorted({one.run.batch for one in found})
    finish(axes, "4 peers, 1,600 steps, 20 between two exchanges", "windows of a peer's step", log=True, ticks=batches)


def by_rate(axes: Axes, records: Sequence[dict[str, Any]]) -> None:
    """The losses of the tuning: a swarm's best rate is above that of one machine."""
    cells = {name_of(one): one for one in records}
    for name, one in cells.items():
        alike = (one["steps"], one["batch"], one["every"]) in ((1600, 4, 20), (1480, 4, 37))
        if not alike or one["peers"] not in ((1,) if one["every"] == 37 else (4,)) or not plain(run_of(one)):
            continue
        losses = tuning([r for r in records if name_of(r) == name])
        colour, line, mark = LOOKS.get(one["method"], OTHERS)
        finite = [(rate(rung), loss) for rung, loss in losses.items() if math.isfinite(loss)]
        if finite:
            axes.plot(*zip(*finite, strict=True), color=colour, ls=line, marker=mark, label=one["method"])
    finish(
        axes,
        "4 peers with 1,600 steps of batch 4, and one with 1,480",
        "inner learning rate",
        log=True,
        ticks=sorted(RUNGS)[3:8],
    )
    axes.set_ylabel("loss, nats a token")


def plots(records: Sequence[dict[str, Any]], out: Path) -> list[Path]:
    """Draw all plots into a folder, and return their files."""
    swarms = [one for one in results_of(records) if one.run.method != SINGLE and plain(one.run)]
    out.mkdir(parents=True, exist_ok=True)
    made = [
        drawn(out / f"worth-{of.__name__.removeprefix('by_')}.svg", functools.partial(of, swarms=swarms))
        for of in (by_peers, by_length, by_every, by_batch)
    ]
    return [*made, drawn(out / "worth-rate.svg", functools.partial(by_rate, records=records))]


def drawn(file: Path, of: Callable[[Axes], None]) -> Path:
    """Draw a plot into a file, and return the file."""
    with mpl.rc_context({"svg.hashsalt": file.stem, "svg.fonttype": "none"}):  # the same runs give the same file
        figure = Figure(figsize=(6, 4), layout="constrained")
        of(figure.add_subplot())
        figure.savefig(file, metadata={"Date": None})
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder of the plots")
    for file in plots(kept(), parser.parse_args().out):
        print(file)


if __name__ == "__main__":
    main()
