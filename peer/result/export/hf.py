"""A folder that `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` read.

The library's own code writes the weights, so that tied tensors and names are as it reads them. No pickle is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from peer.errors import UsageError
from peer.result.export.tokenizer import write_tokenizer
from peer.result.model import OpenedRun, RunModel
from peer.run.sections import LlamaSection
from peer.trainer.models.flat import views_of

SHARD = "5GB"
"""Weights beyond this are cut into several files with an index."""
CONFIG = "config.json"


def write_hf(model: RunModel, folder: Path, shard: str = SHARD) -> None:
    """Fill an empty folder. A foreign config has been opened in a process of its own before.

    Raises OSError, ModelError, and UsageError without the library."""
    try:
        from peer.trainer.models import builder
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed", "Install the extra hf: peer help install extras") from error
    own = _config_text(model.run)
    (folder / CONFIG).write_text(own)
    made: Any = builder.build_shell(builder.config_of(folder / CONFIG))
    _fill(made, model)
    end = model.run.manifest.tokenizer.end_token
    generation: Any = made.generation_config
    if generation is not None:
        generation.update(bos_token_id=None, eos_token_id=end, pad_token_id=None)
    made.save_pretrained(folder, max_shard_size=shard)
    _keep_config(folder, json.loads(own))
    write_tokenizer(model.run, folder)


def _config_text(run: OpenedRun) -> str:
    """Return the config.json of the model: its own, or that of the built-in one."""
    section = run.manifest.model
    if not isinstance(section, LlamaSection):
        path = run.files.run.config
        assert path is not None, "a foreign model has a config"
        return path.read_text()
    fields = section.model_dump(exclude={"kind", "rope_theta"})
    end = run.manifest.tokenizer.end_token
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **fields,
        "rope_parameters": {"rope_type": "default", "rope_theta": section.rope_theta},
        "rope_theta": section.rope_theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": None,
    }
    return json.dumps(config, indent=2) + "\n"


def _fill(made: Any, model: RunModel) -> None:
    """Give the model its parameters. Those that are tied stay one.

    Each is a copy: the library keeps all that shares memory in one file."""
    values, given = dict(views_of(model.params, model.run.layout)), dict[int, torch.nn.Parameter]()
    for name, empty in made.named_parameters():
        given[id(empty)] = torch.nn.Parameter(values[name].clone(), requires_grad=False)
    for module in made.modules():
        for name, empty in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            module.register_parameter(name, given[id(empty)])


def _keep_config(folder: Path, own: dict[str, Any]) -> None:
    """Write the run's own config again, with what the library added."""
    written = json.loads((folder / CONFIG).read_text())
    added = {key: value for key, value in written.items() if key in ("architectures", "dtype", "transformers_version")}
    (folder / CONFIG).write_text(json.dumps(own | added, indent=2) + "\n")
