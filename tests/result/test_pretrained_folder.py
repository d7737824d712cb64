"""A run that begins from a pretrained folder: the export of round 0 has the folder's tensors, types and logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from peer.errors import ModelError
from peer.result.model import SourceRequest
from peer.result.network import network_of
from peer.result.source import load_model
from peer.run.files.artifact_folder import needed_artifacts
from peer.trainer.config import TrainerConfig
from peer.trainer.models.buffers import persistent_buffers
from tests.support.made_home import TRAIN, MadeHome, command, made_home
from tests.support.sandbox_here import open_here

ENDS: dict[str, Any] = {"vocab_size": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SHAPE: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, **ENDS}
WIDE: dict[str, Any] = {**SHAPE, "intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 64}
HEADS: dict[str, Any] = WIDE | {"head_dim": 8}
DEEPSEEK: dict[str, Any] = WIDE | {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
FOLDERS: dict[str, tuple[dict[str, Any], str, str]] = {
    "gpt2": ({"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **ENDS}, "float32", "5GB"),
    "llama": (WIDE, "bfloat16", "5GB"),
    "qwen3": (HEADS | {"tie_word_embeddings": True}, "float16", "20KB"),
    "gemma3_text": (HEADS, "bfloat16", "5GB"),
    "mamba": ({"num_hidden_layers": 2, "state_size": 4, "hidden_size": 32, **ENDS}, "bfloat16", "5GB"),
    "mamba2": (
        {"num_heads": 8, "head_dim": 8, "n_groups": 1, "num_hidden_layers": 2, "state_size": 4, "hidden_size": 32}
        | ENDS,
        "bfloat16",
        "5GB",
    ),
    "mixtral": (WIDE | {"num_local_experts": 4, "num_experts_per_tok": 2}, "bfloat16", "20KB"),
    "deepseek_v3": (DEEPSEEK, "bfloat16", "5GB"),
    "minimax_m2": (HEADS | {"num_local_experts": 4, "num_experts_per_tok": 2}, "bfloat16", "5GB"),
}
"""For each kind: config, data type of the weights, and the size of a weights file."""
BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"
TOKENS = torch.randint(3, 256, (2, 16), generator=torch.Generator().manual_seed(3))


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    open_here(monkeypatch)


def pretrained(folder: Path, kind: str, dtype: str = "", **changes: Any) -> Path:
    """Write a model folder. Its weights and buffers differ from what `from_config` would create, so that a reader that
    ignores the file is noticed."""
    values, usual, shard = FOLDERS[kind]
    torch.manual_seed(5)
    model: Any = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**values | changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
        for buffer in persistent_buffers(model).values():
            buffer.add_(torch.randn_like(buffer))
    model.to(getattr(torch, dtype or usual)).save_pretrained(folder, max_shard_size=shard)
    return folder


def home_of(folder: Path, model: Path) -> MadeHome:
    home = made_home(folder, *TRAIN, model=model)
    home.save(home.first(), round_=0)
    return home


def tensors(folder: Path) -> dict[str, Tensor]:
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


def logits(folder: Path) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        found: Tensor = model(input_ids=TOKENS, use_cache=False).logits
    return found


@pytest.mark.parametrize("kind", FOLDERS)
def test_round_0_is_the_folder(kind: str, tmp_path: Path) -> None:
    folder, out = pretrained(tmp_path / "folder", kind), tmp_path / "out"
    home = home_of(tmp_path, folder)
    command("export", home.path, out, "--no-eval")
    given, found = tensors(folder), tensors(out)
    assert found.keys() == given.keys()
    wrong = [
        name for name in given if given[name].dtype != found[name].dtype or not torch.equal(given[name], found[name])
    ]
    assert not wrong
    assert torch.equal(logits(out), logits(folder))
    assert AutoModelForCausalLM.from_pretrained(out).dtype == AutoModelForCausalLM.from_pretrained(folder).dtype
    if kind == "deepseek_v3":
        assert bool(given[BIAS].any())
        assert "buffers" in needed_artifacts(home.signed.manifest)
        assert home.signed.manifest.format == 5


def test_every_use_of_the_model_has_the_buffers(tmp_path: Path) -> None:
    """`eval`, `generate` and the trainer build the model with this function."""
    folder = pretrained(tmp_path / "folder", "deepseek_v3", "float32")
    home = home_of(tmp_path, folder)
    network = network_of(
        load_model([str(home.path)], SourceRequest(scratch=tmp_path), lambda line: None), torch.device("cpu")
    )
    with torch.no_grad():
        torch.testing.assert_close(network.logits(TOKENS), logits(folder), rtol=0, atol=1e-5)
    plain = tmp_path / "plain"
    command("export", home.path, plain, "--format", "safetensors", "--no-eval")
    assert torch.equal(load_file(plain / "model.safetensors")[BIAS], tensors(folder)[BIAS])
    half = tmp_path / "half"
    command("export", home.path, half, "--no-eval", "--dtype", "bfloat16")
    assert tensors(half)["model.norm.weight"].dtype == torch.bfloat16
    assert json.loads((half / "config.json").read_text())["dtype"] == "bfloat16"
    assert "buffers_file" in TrainerConfig.model_fields


def test_a_folder_of_float32_without_buffers_makes_the_manifest_and_layout_of_before(tmp_path: Path) -> None:
    home = home_of(tmp_path, pretrained(tmp_path / "folder", "gpt2"))
    manifest = home.signed.manifest
    assert (manifest.format, "buffers" in needed_artifacts(manifest)) == (4, False)
    assert all(
        len(row) == 2
        for row in json.loads((home.path / "artifacts" / needed_artifacts(manifest)["layout"].digest).read_text())
    )


def changed(folder: Path, change: dict[str, Tensor | None]) -> Path:
    """Change or remove some tensors of a folder."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        values = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    values |= {name: value for name, value in change.items() if value is not None}
    left = {name: value for name, value in values.items() if change.get(name, value) is not None}
    save_file(left, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("llama", {"model.norm.weight": torch.full((32,), torch.nan)}, "model.norm.weight in .* holds NaN or infinity"),
        ("llama", {"model.norm.weight": torch.full((32,), torch.inf)}, "model.norm.weight in .* holds NaN or infinity"),
        ("llama", {"model.norm.weight": torch.ones(32).double()}, "model.norm.weight in .* is of type F64"),
        ("llama", {"model.norm.weight": torch.ones(31)}, r"model.norm.weight is \[31\] in .*, \[32\] by"),
        ("llama", {"model.norm.weight": None}, "lacks weights of its model: model.norm.weight"),
        ("llama", {"score.weight": torch.ones(2, 32)}, "no place for: score.weight"),
        ("gpt2", {"lm_head.weight": torch.ones(256, 32)}, "lm_head.weight in .* has values of its own"),
        ("deepseek_v3", {BIAS: torch.full((4,), torch.nan)}, f"buffer {BIAS} in .* holds NaN"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name(
    kind: str, change: dict[str, Tensor | None], words: str, tmp_path: Path
) -> None:
    folder = changed(pretrained(tmp_path / "folder", kind), change)
    with pytest.raises(ModelError, match=words) as caught:
        made_home(tmp_path, *TRAIN, model=folder)
    told = f"{caught.value.found} {caught.value.fix} {caught.value.why}"
    assert "stranger" not in told
    assert "report" not in told
    assert str(folder) in told
    assert not (tmp_path / "run.toml").exists()
