"""Models of transformers compute the same after they are bound to a flat vector as the library's own models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from peer.errors import ModelError
from peer.protocol.model.layout import Layout, TensorSpec
from peer.run.files.artifact import ArtifactRef
from peer.run.sections import LlamaSection, TransformersSection
from peer.trainer.config import TrainerConfig
from peer.trainer.models import llama
from peer.trainer.models.builder import build, build_counted, config_of
from peer.trainer.models.factory import bind, check_tensors, decays, empty_model, layout_of
from peer.trainer.models.flat import views_of

TRANSFORMER = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 96,
    "max_position_embeddings": 64,
}
SPECIAL = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 96, "n_positions": 64},
    "llama": TRANSFORMER,
    "qwen2": TRANSFORMER,
    "qwen3": {**TRANSFORMER, "tie_word_embeddings": True},
    "gemma3_text": TRANSFORMER,
    "mamba": {"num_hidden_layers": 2, "hidden_size": 32, "state_size": 4, "vocab_size": 96},
}
REF = ArtifactRef(digest="ab" * 32, size=1)
TOKENS = torch.randint(0, 96, (2, 17), generator=torch.Generator().manual_seed(3))


def config_file(folder: Path, kind: str, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": kind, **SPECIAL, **MODELS[kind], **changes}))
    return path


def config_for(path: Path, parameters: int = 1) -> TrainerConfig:
    model = TransformersSection(kind="transformers", parameters=parameters, config=REF, layout=REF)
    return TrainerConfig(model=model, sync_every=4, seed=1, peer_id="a", config_file=str(path))


def plain_model(path: Path) -> Any:
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(config_of(path), dtype=torch.float32).eval()
    model.get_input_embeddings().padding_idx = None  # no token of a full window is padding
    return model


def loss_of(logits: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), TOKENS[:, 1:].flatten())


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_of_views_has_the_logits_and_gradients_of_one_made_plainly(kind: str, tmp_path: Path) -> None:
    config = config_for(config_file(tmp_path, kind))
    plain, layout = plain_model(tmp_path / "config.json"), layout_of(config)
    assert layout.tensors == tuple(TensorSpec(name, tuple(p.shape)) for name, p in plain.named_parameters())
    params = torch.cat([param.detach().flatten() for param in plain.parameters()])
    model = empty_model(config)
    assert all(param.is_meta for param in model.parameters())
    bind(model, layout, params)
    logits, wanted = model.logits(TOKENS[:, :-1]), plain(input_ids=TOKENS[:, :-1], use_cache=False).logits
    assert torch.equal(logits, wanted)
    loss_of(logits).backward()
    loss_of(wanted).backward()
    for (name, own), param in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert own.grad is not None
        assert torch.equal(own.grad, param.grad), name
    assert sum(float(param.grad.norm()) for param in plain.parameters()) > 0.1
    params.mul_(0.5)
    assert not torch.equal(model.logits(TOKENS[:, :-1]), logits), "the model does not see its flat vector"


@pytest.mark.parametrize("kind", MODELS)
def test_weight_decay_leaves_out_embeddings_norms_and_what_the_model_excepts(kind: str, tmp_path: Path) -> None:
    config = config_for(config_file(tmp_path, kind))
    layout = layout_of(config)
    params = torch.zeros(layout.elements)
    model = empty_model(config)
    bind(model, layout, params)
    for decay, param in zip(decays(model), model.parameters(), strict=True):
        param.data.fill_(float(decay))
    names = {name for name, view in views_of(params, layout) if bool(view.any())}
    assert names == {
        tensor.name
        for tensor in layout.tensors
        if len(tensor.shape) >= 2 and not any(word in tensor.name for word in ("embed", "wte", "wpe", "norm", "A_log"))
    }
    assert names


def test_the_built_in_llama_decays_the_same_matrices_as_ever() -> None:
    section = LlamaSection()
    config = TrainerConfig(model=section, sync_every=4, seed=1, peer_id="a")
    layout = layout_of(config)
    params, model = torch.zeros(layout.elements), empty_model(config)
    bind(model, layout, params)
    for decay, param in zip(decays(model), model.parameters(), strict=True):
        param.data.fill_(float(decay))
    for name, view in views_of(params, layout):
        assert bool(view.any()) == (view.dim() == 2 and "embed" not in name), name


@pytest.mark.parametrize("heads", [4, 2])
def test_the_built_in_llama_is_transformers_llama(heads: int) -> None:
    section = LlamaSection(num_key_value_heads=heads, rope_theta=5000.0)
    own_layout, params = llama.layout_of(section), llama.first_params(section, 11)
    model = llama.empty_model(section)
    bind(model, own_layout, params)
    fields = section.model_dump(exclude={"kind", "rope_theta"})
    theirs = LlamaForCausalLM(
        LlamaConfig(**fields, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 5000.0})
    ).eval()
    weights = dict(views_of(params, own_layout))
    with torch.no_grad():
        for name, param in theirs.named_parameters():
            param.copy_(weights[name])
    logits, wanted = model(TOKENS[:, :-1]), theirs(input_ids=TOKENS[:, :-1], use_cache=False).logits
    torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-5)
    loss_of(logits).backward()
    loss_of(wanted).backward()
    theirs_by_name = dict(theirs.named_parameters())
    assert theirs_by_name.keys() == {tensor.name for tensor in own_layout.tensors}
    for name, param in model.named_parameters():
        torch.testing.assert_close(param.grad, theirs_by_name[name].grad, rtol=0, atol=1e-5)
    assert float(logits.detach().std()) > 0.1


def test_what_differs_from_the_runs_layout_is_refused_by_name() -> None:
    run = [TensorSpec("a", (2, 3)), TensorSpec("b", (4,)), TensorSpec("d", (1,))]
    here = Layout.whole([TensorSpec("a", (3, 2)), TensorSpec("b", (4,)), TensorSpec("c", (1,))])
    with pytest.raises(ModelError) as caught:
        check_tensors(here, run)
    for words in ("d is not in the model here", "c is not in the run's layout", "a is [3, 2] here, [2, 3] in the run"):
        assert words in caught.value.found
    assert "b" not in caught.value.found.split(": ")[1].replace("built", "").split()
    check_tensors(here, list(here.tensors)[::-1])


def test_tied_weights_count_once_and_their_names_are_the_embeddings(tmp_path: Path) -> None:
    config = config_for(config_file(tmp_path, "gpt2"))
    model = empty_model(config)
    assert model.prefix == "model."
    assert [tensor.name for tensor in layout_of(config).tensors][:1] == ["transformer.wte.weight"]
    assert "lm_head.weight" not in {tensor.name for tensor in layout_of(config).tensors}


def test_building_stops_once_a_model_is_larger_than_allowed(tmp_path: Path) -> None:
    config = config_of(config_file(tmp_path, "llama", hidden_size=2**14, vocab_size=2**20))
    with pytest.raises(ModelError, match="more than the 1,000,000 parameters"):
        build_counted(config, 10**6)


def test_a_model_that_predicts_no_next_token_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "vit"}')
    with pytest.raises(ModelError, match="predicts no next token"):
        build_counted(config_of(path), 10**9)
    path.write_text('{"model_type": "no-such-model"}')
    with pytest.raises(ModelError, match="knows no model_type 'no-such-model'"):
        config_of(path)


@pytest.mark.parametrize(
    ("kind", "padding"),
    [
        ("phi3", None),
        ("smollm3", None),
        ("modernbert-decoder", 0),
        ("phi3", 5),
        ("phi3", 96),
        ("phi3", -1),
    ],
)
def test_a_padding_token_outside_of_the_vocabulary_is_left_out(kind: str, padding: int | None, tmp_path: Path) -> None:
    """A bare config has the library's default padding token. A kind that insists on a number gets a valid one."""
    given = {} if padding in (None, 0) else {"pad_token_id": padding}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, **TRANSFORMER, **given}))
    config = config_of(path)
    assert config.pad_token_id == (padding if padding in (0, 5) else None)
    build_counted(config, 10**8)  # torch rejects a padding token outside the vocabulary


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_token_that_a_config_calls_padding_is_trained_as_any_other(kind: str, tmp_path: Path) -> None:
    """Fault: torch gives the padding token's embedding no gradient, although it may be any word of the run's
    tokenizer."""
    padding = int(TOKENS[0, 3])
    model: Any = build(config_of(config_file(tmp_path, kind, pad_token_id=padding)))
    model.lm_head.weight = torch.nn.Parameter(torch.randn(96, 32))  # not tied: its gradient would hide a missing one
    loss_of(model(TOKENS[:, :-1]).logits).backward()
    assert model.get_input_embeddings().weight.grad[padding].any()


@pytest.mark.parametrize("kind", ["emu3", "mllama"])
def test_a_part_of_a_model_names_the_whole(kind: str) -> None:
    part = CONFIG_MAPPING[f"{kind}_text_model"](vocab_size=96, pad_token_id=0)
    with pytest.raises(ModelError, match=f"{kind}_text_model' predicts no next token") as caught:
        build_counted(part, 10**6)
    assert f'"model_type": "{kind}"' in caught.value.fix
