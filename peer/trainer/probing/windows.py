"""The windows of a probe: how many, how long, and which."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from peer.run.sections import DataSection
from peer.run.sync.common_data import no_common_text_reason
from peer.trainer.batches import Windows
from peer.trainer.data import Corpus, Tokens, TrainingData

MOST_WINDOWS = 16
MOST_TOKENS = 128
"""Tokens of a window at most."""
STEPS = 2
"""Inner steps whose time a probe may take."""
PASSES_OF_A_STEP = 3
"""Forward passes that a step of forward and backward takes as long as."""
PASSES = 4
"""Forward passes over the windows: with our base, our own params, the mean, and the partner's."""
USUAL_WINDOWS, SHORTEST = 8, 16
"""Windows become shorter where a small batch pays for fewer than so many, down to so many tokens."""
COMMON = "from anywhere in the run's data"
HOLDOUT = "from anywhere in the run's hold-out"


@dataclass(frozen=True, slots=True)
class WindowForm:
    """The windows of a probe. `STEPS` inner steps pay for them."""

    count: int
    length: int
    """Tokens of a window, with the one that is predicted last."""

    @classmethod
    def affordable(cls, tokens_per_step: int, context: int) -> WindowForm:
        """Return the form for a trainer's steps."""
        tokens = STEPS * PASSES_OF_A_STEP * tokens_per_step // PASSES
        predicted = min(context, MOST_TOKENS)
        while tokens // predicted < USUAL_WINDOWS and predicted > SHORTEST:
            predicted = max(SHORTEST, predicted // 2)
        return cls(min(MOST_WINDOWS, tokens // predicted), predicted + 1)


def common_text(section: DataSection, data: TrainingData) -> Tokens | str:
    """Return the training tokens that every peer of the run has, or the reason why there are none here."""
    if not isinstance(data, Corpus):
        return "the shards at hand are a part of the run's data, and params are not judged by a part"
    return no_common_text_reason(section) or data.train


def draw(tokens: Tokens, *, seed: int, form: WindowForm) -> Windows:
    """Return windows, [count, length], from anywhere in the text."""
    starts = np.random.Generator(np.random.PCG64(seed)).integers(0, len(tokens) - form.length + 1, form.count)
    windows: Windows = tokens[starts[:, None] + np.arange(form.length)]
    return windows
