"""The number and the choice of a probe's windows, and the reason that is reported if there are none."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from peer.run.sections import DataSection
from peer.trainer.data import Corpus
from peer.trainer.probing.windows import MOST_WINDOWS, SHORTEST, WindowForm, common_text, draw

TOKENS = np.arange(5000, dtype=np.uint16)


def test_windows_lie_anywhere_in_the_text_and_follow_from_the_seed() -> None:
    windows = draw(TOKENS, seed=1, form=WindowForm(500, 65))
    assert windows.shape == (500, 65)
    assert (np.diff(windows.astype(int), axis=1) == 1).all()
    assert windows.min() < 200
    assert windows.max() > 4800
    assert (draw(TOKENS, seed=1, form=WindowForm(500, 65)) == windows).all()
    assert (draw(TOKENS, seed=2, form=WindowForm(500, 65)) != windows).any()


def test_long_contexts_are_cut() -> None:
    form = WindowForm.affordable(8 * 1024, 1024)
    assert draw(TOKENS, seed=1, form=form).shape == (MOST_WINDOWS, 129)


@pytest.mark.parametrize(("batch", "context", "count", "tokens"), [(8, 64, 12, 64), (2, 64, 12, 16), (2, 32, 6, 16)])
def test_small_batches_pay_for_shorter_windows(batch: int, context: int, count: int, tokens: int) -> None:
    assert WindowForm.affordable(batch * context, context) == WindowForm(count, tokens + 1)


@pytest.mark.parametrize("batch", [1, 2, 4, 8, 64])
@pytest.mark.parametrize("context", [16, 128, 1024])
def test_a_probe_costs_two_inner_steps_at_most(batch: int, context: int) -> None:
    """A probe makes four forward passes over its windows; a step costs three for each of its tokens."""
    form = WindowForm.affordable(batch * context, context)
    assert form.count <= MOST_WINDOWS
    assert SHORTEST < form.length <= min(context, 128) + 1
    assert 4 * form.count * (form.length - 1) <= 2 * 3 * batch * context


@pytest.mark.parametrize(
    ("section", "common"),
    [
        (DataSection(kind="stdlib"), True),
        (DataSection(kind="text", digest="ab" * 32), True),
        (DataSection(kind="text"), False),
    ],
)
def test_only_data_that_all_have_judges(section: DataSection, common: bool) -> None:
    corpus = Corpus(TOKENS, TOKENS[:100], "ab" * 32)
    found = common_text(section, corpus)
    assert isinstance(found, str) is not common
    if not isinstance(found, str):
        assert found is corpus.train, "never the hold-out"


def test_some_of_the_shards_are_not_the_runs_data() -> None:
    assert "a part" in cast(str, common_text(DataSection(kind="stdlib"), cast(Any, object())))
