"""The windows of a probe: their number, their length and their places in the text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from peer.run.sections import DataSection
from peer.run.sync.common_data import no_common_text_reason
from peer.trainer.batches import Windows
from peer.trainer.data import Corpus, Tokens, TrainingData

MOST_WINDOWS = 16
MOST_TOKENS = 128
"""Most predicted tokens of a window."""
STEPS = 2
"""A probe may take the time of this many inner steps."""
PASSES_OF_A_STEP = 3
"""An inner step, forward and backward, takes as long as this many forward passes."""
PASSES = 4
"""Forward passes of a probe over its windows: with base, own params, the mean, and the partner's params."""
USUAL_WINDOWS, SHORTEST = 8, 16
"""If a batch is so small that a probe may use fewer than `USUAL_WINDOWS` windows, the windows are shortened, to
`SHORTEST` predicted tokens at least."""
COMMON = "from anywhere in the run's data"
HOLDOUT = "from anywhere in the run's hold-out"


@dataclass(frozen=True, slots=True)
class WindowForm:
    """Number and length of the windows of a probe."""

    count: int
    length: int
    """Tokens of a window, with the token that is predicted last."""

    @classmethod
    def affordable(cls, tokens_per_step: int, context: int) -> WindowForm:
        """Return the largest form whose probe takes no longer than `STEPS` inner steps."""
        tokens = STEPS * PASSES_OF_A_STEP * tokens_per_step // PASSES
        predicted = min(context, MOST_TOKENS)
        while tokens // predicted < USUAL_WINDOWS and predicted > SHORTEST:
            predicted = max(SHORTEST, predicted // 2)
        return cls(min(MOST_WINDOWS, tokens // predicted), predicted + 1)


def common_text(section: DataSection, data: TrainingData) -> Tokens | str:
    """Return training tokens that all peers of the run have, or the reason why there are none on this peer."""
    if not isinstance(data, Corpus):
        return "the shards at hand are a part of the run's data, and params are not judged by a part"
    return no_common_text_reason(section) or data.train


def draw(tokens: Tokens, *, seed: int, form: WindowForm) -> Windows:
    """Return windows, [count, length], from uniformly random places in `tokens`."""
    starts = np.random.Generator(np.random.PCG64(seed)).integers(0, len(tokens) - form.length + 1, form.count)
    windows: Windows = tokens[starts[:, None] + np.arange(form.length)]
    return windows
