"""Model shapes with about a given number of parameters."""

from __future__ import annotations

import pytest

from peer.errors import UsageError
from peer.lab.planning.shape import shape_for


@pytest.mark.parametrize("params", [2e5, 1e6, 5e6, 35e6, 60e6, 125e6, 335e6, 1.3e9, 2.4e9, 10e9, 100e9])
@pytest.mark.parametrize("vocab", [256, 32768])
def test_the_size_is_met_within_a_few_per_cent(params: float, vocab: int) -> None:
    if params < 3e6 and vocab > 256:
        return
    model = shape_for(params, vocab, 2048)
    assert model.parameters == pytest.approx(params, rel=0.03)
    assert 1.5 <= model.intermediate_size / model.hidden_size <= 6


@pytest.mark.parametrize(("params", "layers"), [(35e6, 6), (335e6, 15), (1e9, 24), (10e9, 48), (100e9, 108)])
def test_the_depth_is_that_of_the_papers(params: float, layers: int) -> None:
    assert shape_for(params, 32768, 2048).num_hidden_layers == layers


def test_a_vocabulary_needs_room() -> None:
    with pytest.raises(UsageError, match="leave no room"):
        shape_for(1e5, 32768, 64)
    with pytest.raises(UsageError, match="--params"):
        shape_for(1e15, 256, 64)
