"""Writes a folder that `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` can read.

The built-in model is written here, so that its export needs no further library. Any other model is written by
transformers itself, so that tied tensors and names match what it reads. No pickle is written."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from peer.errors import UsageError
from peer.installation import install_extras
from peer.result.export.tokenizer import SpecialTokens, special_tokens, write_tokenizer
from peer.result.model import RunModel, stored_tensors
from peer.run.sections import LlamaSection
from peer.trainer.models.flat import replace_parameters

SHARD_BYTES = 5 * 10**9
"""Size from which weights are split into several files with an index."""
CONFIG, GENERATION = "config.json", "generation_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADDED = ("architectures", "dtype", "transformers_version")
"""Fields that transformers adds to a config and that are kept in the exported config."""


def write_hf(model: RunModel, folder: Path, dtype: str | None = None, shard_bytes: int = SHARD_BYTES) -> None:
    """Fill an empty folder. `dtype`: see `stored_tensors`.

    A config that is not ours must have been checked in a separate process before. Raises OSError, ModelError, and
    UsageError when transformers is needed and missing."""
    tokens = special_tokens(model.run)
    if isinstance(model.run.manifest.model, LlamaSection):
        _write_llama(model, model.run.manifest.model, tokens, folder, dtype, shard_bytes)
    else:
        _write_foreign(model, tokens, folder, dtype, shard_bytes)
    write_tokenizer(model.run, tokens, folder)


def _write_llama(
    model: RunModel, section: LlamaSection, tokens: SpecialTokens, folder: Path, dtype: str | None, shard_bytes: int
) -> None:
    """Write config and weights of the built-in model. Raises OSError."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **section.model_dump(exclude={"kind", "rope_theta"}),
        "rope_parameters": {"rope_type": "default", "rope_theta": section.rope_theta},
        "rope_theta": section.rope_theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "dtype": dtype or "float32",
        **tokens.ids(),
    }
    _write_json(folder / CONFIG, config)
    _write_json(folder / GENERATION, tokens.ids())
    _write_weights(stored_tensors(model, dtype), folder, shard_bytes)


def _write_weights(tensors: Iterable[tuple[str, torch.Tensor]], folder: Path, shard_bytes: int) -> None:
    """Write tensors that share no memory to one file, or to several files of about `shard_bytes` with an index."""
    shards, room = [dict[str, torch.Tensor]()], shard_bytes
    for name, tensor in tensors:
        if shards[-1] and tensor.nbytes > room:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = tensor
        room -= tensor.nbytes
    if len(shards) == 1:
        save_file(shards[0], folder / WEIGHTS, metadata={"format": "pt"})
        return
    where, total = dict[str, str](), 0
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(shard, file)
        total += sum(tensor.nbytes for tensor in shard.values())
    _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": where})


def _write_foreign(model: RunModel, tokens: SpecialTokens, folder: Path, dtype: str | None, shard_bytes: int) -> None:
    """Let transformers write config and weights. Raises OSError, ModelError and UsageError."""
    try:
        from peer.trainer.models import builder
        from peer.trainer.models.buffers import put_buffers, read_buffers
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed", install_extras("hf")) from error
    path = model.run.files.run.config
    assert path is not None, "a foreign model has a config"
    own, config = json.loads(path.read_text()), builder.config_of(path)
    made: Any = builder.build_shell(config)
    # Copies, because safetensors refuses tensors that share memory.
    tensors = {name: tensor.clone() for name, tensor in stored_tensors(model, dtype)}
    replace_parameters(made, {name: torch.nn.Parameter(one, requires_grad=False) for name, one in tensors.items()})
    if (buffers := model.run.files.run.buffers) is not None:
        put_buffers(made, read_buffers(buffers, made), keep_type=True)
    of_model = tokens.for_model(config.get_text_config(decoder=True), made)
    if made.generation_config is not None:
        made.generation_config.update(**replace(of_model, pad=tokens.pad).ids())
    made.save_pretrained(folder, max_shard_size=shard_bytes)
    written = json.loads((folder / CONFIG).read_text())
    added = {key: value for key, value in written.items() if key in ADDED}
    elements = Counter[str]()
    for tensor in tensors.values():
        elements[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    added["dtype"] = elements.most_common(1)[0][0]
    if "torch_dtype" in own:  # the key of older versions of transformers
        added["torch_dtype"] = added["dtype"]
    _write_json(folder / CONFIG, _with_tokens(own, config, of_model) | added)


def _with_tokens(own: dict[str, Any], config: Any, tokens: SpecialTokens) -> dict[str, Any]:
    """Return the run's own config with these special tokens in place of its own and of the library's defaults.

    Other fields `…_token_id` outside of the vocabulary, as the defaults of a minimal config often are, become null:
    otherwise transformers warns at every load. A null that the config's type refuses is left out."""
    decoder = config.get_text_config(decoder=True)
    fields = {name: value for name, value in decoder.to_dict().items() if name.endswith("_token_id")}
    outside = {n: None for n, v in fields.items() if isinstance(v, int) and not 0 <= v < decoder.vocab_size}
    given = outside | tokens.ids()
    part = next((name for name in config.sub_configs if getattr(config, name, None) is decoder), None)
    if part is None:
        return own | _accepted(given, decoder)
    return own | _accepted(tokens.ids(), config) | {part: own.get(part, {}) | _accepted(given, decoder)}


def _accepted(tokens: dict[str, Any], config: Any) -> dict[str, Any]:
    """Replace or remove each null that the config's type refuses, because a folder with it could not be loaded. Return
    the new fields.

    A field with such a null gets the value of the model's config if that is a token. Otherwise the field is left out,
    so that the library's default applies."""
    taken = dict[str, Any]()
    for name, value in tokens.items():
        if value is None and _refuses_null(config, name):
            value = getattr(config, name, None)
            if not isinstance(value, int) or not 0 <= value < config.get_text_config(decoder=True).vocab_size:
                continue
        taken[name] = value
    return taken


def _refuses_null(config: Any, name: str) -> bool:
    from huggingface_hub.errors import StrictDataclassError

    try:
        copy.deepcopy(config).update({name: None})
    except StrictDataclassError:
        return True
    return False


def _write_json(file: Path, table: dict[str, Any]) -> None:
    file.write_text(json.dumps(table, indent=2) + "\n")
