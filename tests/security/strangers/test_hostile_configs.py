"""Configs of an operator that make large tensors without parameters: refused by name wherever a model is made."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from peer.errors import ModelError
from peer.run.manifest import parse_manifest
from peer.run.memory import need_of
from peer.run.sections import MOST_BUFFER_BYTES
from peer.trainer.config import TrainerConfig
from peer.trainer.memory_limit import limited_memory
from peer.trainer.models import builder
from peer.trainer.models.factory import empty_model
from peer.trainer.models.foreign import ForeignModel
from peer.trainer.sandbox import inspect_config
from tests.run.test_sections_of_artifacts import FOREIGN
from tests.support.sandbox_here import open_here

REF = {"digest": "ab" * 32, "size": 700}
NEO = {
    "model_type": "gpt_neo",
    "hidden_size": 2,
    "num_layers": 2,
    "num_heads": 1,
    "vocab_size": 96,
    "attention_types": [[["global"], 2]],
}
LARGE = NEO | {"max_position_embeddings": 46341}
"""A square mask of 2 GiB in each layer, of 93 thousand parameters."""
USUAL = NEO | {"max_position_embeddings": 2048}
WORDS = r"makes 4\.29 GB of buffers beside its parameters, at most 268\.4 MB are taken\. The largest is .*\.bias: "


def written(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("context", [0, 8])
def test_masks_by_formula_are_refused_in_the_sandbox(
    context: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 8 the model is to be trained, with 0 to be evaluated or exported."""
    open_here(monkeypatch)
    with pytest.raises(ModelError, match=WORDS) as caught:
        inspect_config(written(tmp_path, LARGE), 10**6, context=context)
    assert "max_position_embeddings" in caught.value.fix
    assert inspect_config(written(tmp_path, USUAL), 10**6, context=context).max_positions == 2048


def test_what_makes_the_model_refuses_it_too(tmp_path: Path) -> None:
    """The trainer, eval and generate make it by one function, export by the one below it."""
    config = {
        "model": {"kind": "transformers", "parameters": 1, "config": REF, "layout": REF},
        "sync_every": 1,
        "seed": 1,
    }
    given = TrainerConfig.model_validate(config | {"peer_id": "", "config_file": str(written(tmp_path, LARGE))})
    with pytest.raises(ModelError, match=WORDS):
        empty_model(given)
    with pytest.raises(ModelError, match=WORDS):
        builder.build_shell(builder.config_of(tmp_path / "config.json"))
    written(tmp_path, USUAL)
    assert sum(buffer.nbytes for buffer in empty_model(given).buffers()) >= 2 * 2048**2


def test_what_no_count_sees_meets_the_limit_of_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = builder.config_of(written(tmp_path, USUAL))
    monkeypatch.setattr(builder, "check_buffer_bytes", lambda model: None)
    monkeypatch.setattr(builder, "SHELL_BYTES", 2**21)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    large = builder.config_of(written(tmp_path, LARGE))
    with pytest.raises(ModelError, match=r"making GPTNeo\w+ of the run's config takes more memory than"):
        builder.build_shell(large)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    monkeypatch.undo()
    builder.build_shell(config)


def test_a_limit_ends_with_its_block_and_hides_no_other_error() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(ModelError, match="making it takes more memory than the 1"), limited_memory(2**20, "making it"):
        torch.ones(2**28)
    with pytest.raises(RuntimeError, match="size of tensor"), limited_memory(2**28, "making it"):
        torch.ones(2) + torch.ones(3)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_the_need_of_a_run_counts_the_buffers_that_a_config_may_make() -> None:
    manifest = parse_manifest(FOREIGN.encode())
    base = need_of(manifest, micro_batch=0).trainer - need_of(manifest, micro_batch=0, trains_here=False).trainer
    assert base == 16 * manifest.model.parameters + MOST_BUFFER_BYTES


@pytest.mark.parametrize("layers", [0, -1, [2], None])
def test_a_number_of_layers_that_is_none_divides_nothing(layers: Any) -> None:
    made: Any = builder.build(builder.CONFIG_MAPPING["gpt_neo"](**USUAL))
    made.config = SimpleNamespace(num_hidden_layers=layers)
    assert ForeignModel(made).layers == 1
