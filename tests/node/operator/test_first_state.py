"""The state with which a run begins: made from its seed, or named by the manifest."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from peer.errors import StateError
from peer.joining.reset import digest_of
from peer.node.operator.initial_state import first_state, load_params
from peer.protocol.messages import RunId
from peer.run.manifest import Manifest
from peer.run.model_layout import layout_for
from peer.run.resolve import resolve
from peer.state.checkpoint import CheckpointStore
from peer.trainer.models.flat import views_of
from peer.trainer.models.llama import first_params, layout_of

STREAMED = {"sync": {"preset": "streaming-noloco", "fragments": 2, "fragment_layout": "strided"}}


def manifest(**changes: object) -> Manifest:
    return Manifest.model_validate({"format": 1, "name": "w", **STREAMED, **changes})


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Write a checkpoint of a run with a full schedule."""
    params = first_params(manifest().model, 99)
    store = CheckpointStore(tmp_path / "checkpoints")
    draft = store.begin()
    (draft / "trainer.json").write_text("{}")
    layout = layout_of(manifest().model)
    return store.commit(draft, params, torch.zeros_like(params), RunId(b"r" * 32), layout.digest(), {}).folder


def test_a_named_state_is_laid_out_as_the_run_has_it(kept: Path) -> None:
    params = load_params(kept, None)
    run = manifest(init=digest_of(params).hex())
    layout = layout_for(run.model, resolve(run.sync))
    outer = first_state(run, layout, kept, pytest.fail)
    assert not torch.equal(outer.params, params), "the order is another one"
    given = dict(views_of(params, layout_of(run.model)))
    assert all(torch.equal(view, given[name]) for name, view in views_of(outer.params, layout))


def test_another_state_is_refused_and_so_is_none(kept: Path) -> None:
    run = manifest(init="ab" * 32)
    layout = layout_for(run.model, resolve(run.sync))
    with pytest.raises(StateError, match="the run begins from ababab"):
        first_state(run, layout, kept, pytest.fail)
    with pytest.raises(StateError, match="which this node does not have"):
        first_state(run, layout, None, pytest.fail)


def test_without_a_name_the_seed_makes_it_and_a_given_state_is_told(kept: Path) -> None:
    run, said = manifest(seed=5), list[str]()
    layout = layout_for(run.model, resolve(run.sync))
    assert torch.equal(first_state(run, layout, None, said.append).params, first_params(run.model, 5, layout))
    assert not said
    first_state(run, layout, kept, said.append)
    assert "refound" in said[0]
