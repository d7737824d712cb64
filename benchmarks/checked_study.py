"""What do clip and check cost the default method where the study of defaults measured its gain?

Promise 11: one liar of eight costs the honest at most 2 % of loss. Bounds: in each cell of the study at most 5 % of the
exchanges are refused, and the loss is at most .5 % above that without clip and check. Some twenty minutes of a core.

    python -m benchmarks.checked_study [--pages FOLDER] [--cells 1 3] [--seeds 3] [--json FILE] [--results]

Runs as `python -m benchmarks.study` plays them, of the method that it chose and at the rate that it found. The clip,
the verdict and the draw of windows are the product's. `affordable`: the short windows that the product takes with so
small a batch. `checked`: those that it takes with larger ones."""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.honest_partners import MORE_PERCENT, REFUSED_PERCENT, error
from benchmarks.result import Benchmark, Figure, Table, options, publish
from benchmarks.study.__main__ import corpus_of, kept
from benchmarks.study.methods import CHOSEN, Accept, take_all
from benchmarks.study.plan import CELLS, tuned
from benchmarks.study.play import MODEL, TRAIN, StudyCell, StudyRun, play
from benchmarks.study.stacked import StackedLlama
from peer.exchange.pair.clipping import distance, shorten
from peer.lab.bench.tables import Cell
from peer.protocol.pair.clip import ClipMemory
from peer.protocol.pair.probe_verdict import ProbeLosses, judge
from peer.trainer.data import Corpus
from peer.trainer.probing.windows import MOST_WINDOWS, WindowForm, draw

ABOUT = Benchmark(
    "checked_study",
    "What do clip and check cost the default method where the study of defaults measured its gain?",
    "11 (no stranger decides; one liar of eight costs the honest at most 2 % of loss)",
)
WINDOWS = {
    "none": None,
    "affordable": WindowForm.affordable(TRAIN.batch * TRAIN.context, TRAIN.context),
    "checked": WindowForm(MOST_WINDOWS, TRAIN.context + 1),
}
"""The windows that a peer checks its partner by, for each kind of run. None: the peer neither clips nor checks."""


class StudyJudge:
    """Clips and checks the partners of one run's peers, and counts."""

    def __init__(self, corpus: Corpus, seed: int, windows: WindowForm) -> None:
        self._text = corpus.train
        self._seed = seed
        self._windows = windows
        self._memories = defaultdict[int, ClipMemory](ClipMemory)
        self._secrets = random.Random(f"probe {seed}")
        self.judged = self.clipped = self.refused = 0

    def accept(self, peer: int, outer: Tensor, own: Tensor, theirs: Tensor) -> bool:
        """See `benchmarks.study.methods.Accept`. All have trained the same tokens."""
        clip = self._memories[peer].of(0).clip(distance(own, outer), distance(theirs, own), 1.0)
        verdict = judge(self._losses(outer, own, theirs, clip.taken))
        taken = verdict is None or verdict.accepted
        self.judged += 1
        self.refused += not taken
        self.clipped += taken and clip.taken < 1
        shorten(theirs, own, clip.taken)
        return taken

    @torch.no_grad()
    def _losses(self, outer: Tensor, own: Tensor, theirs: Tensor, taken: float) -> ProbeLosses:
        drawn = draw(self._text, seed=self._secrets.getrandbits(64), form=self._windows)
        windows = torch.from_numpy(drawn.astype(np.int64))
        params = torch.stack([outer, own, own.lerp(theirs, taken / 2), theirs])
        losses = StackedLlama(MODEL, params).window_losses(windows.expand(4, *windows.shape))
        base, mine, mixed, partner = (tuple(one) for one in losses.tolist())
        return ProbeLosses(base, mine, mixed, partner, math.log(MODEL.vocab_size))


def compare(cell: StudyCell, corpus: Corpus, seed: int) -> tuple[dict[str, float], dict[str, StudyJudge]]:
    """Return the loss and the judge of each kind, of one seed."""
    run = StudyRun(cell, CHOSEN, tuned(kept(), cell, CHOSEN), seed)
    judges = {name: StudyJudge(corpus, seed, form) for name, form in WINDOWS.items() if form is not None}
    names = list(WINDOWS)

    def accept(place: int) -> Accept:
        return judges[names[place]].accept if names[place] in judges else take_all

    played = play([run] * len(names), corpus, TRAIN, accept)
    losses = {name: math.inf if one["loss"] is None else one["loss"] for name, one in zip(names, played, strict=True)}
    return losses, judges


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--pages", type=Path, metavar="FOLDER", help="the manual pages: see study/PROTOCOL.md")
    numbers = range(1, len(CELLS) + 1)
    parser.add_argument("--cells", type=int, nargs="+", choices=numbers, default=[1, 2, 3, 5])
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    figures, rows = list[Figure](), list[list[Cell]]()
    for cell in (CELLS[number - 1] for number in given.cells):
        corpus = corpus_of(cell.corpus, given.pages)
        name, costs = f"{cell.corpus}, {cell.peers} peers, {cell.every} steps", defaultdict[str, list[float]](list)
        counts = {kind: [0, 0, 0] for kind in WINDOWS}
        for seed in range(given.seeds):
            losses, judges = compare(cell, corpus, seed)
            for kind, one in judges.items():
                costs[kind].append(100 * (losses[kind] / losses["none"] - 1))
                found = (one.judged, one.refused, one.clipped)
                counts[kind] = [sum(both) for both in zip(counts[kind], found, strict=True)]
            print(name, seed, losses, counts, flush=True)
        for kind, over in costs.items():
            judged, refused, clipped = counts[kind]
            mean, part = statistics.fmean(over), 100 * refused / judged
            form = WINDOWS[kind]
            assert form is not None
            rows.append(
                [
                    name,
                    kind,
                    f"{form.count} of {form.length - 1} tokens",
                    judged,
                    part,
                    100 * clipped / judged,
                    mean,
                    error(over),
                ]
            )
            figures.append(Figure(f"{name}, {kind}: loss over that without", "%", mean, MORE_PERCENT))
            figures.append(Figure(f"{name}, {kind}: refused", "%", part, REFUSED_PERCENT))
    heads = ["cell", "", "windows", "judged", "refused, %", "clipped, %", "loss, %", "error"]
    publish(given, ABOUT, figures, Table("", heads, rows))


if __name__ == "__main__":
    main()
