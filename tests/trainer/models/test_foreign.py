"""The abilities of a foreign model are determined by trying it out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    OPTConfig,
    PretrainedConfig,
    Qwen2Config,
)

from peer.trainer.models.documents import documents_of
from peer.trainer.models.foreign import ForeignModel

VOCABULARY = 300
ENDS: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
SHAPE: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, **ENDS}
WIDE: dict[str, Any] = {**SHAPE, "intermediate_size": 48, "num_key_value_heads": 2}
CONFIGS = {
    "gpt2": GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=64, **ENDS),
    "qwen2": Qwen2Config(**WIDE),
    "llama": LlamaConfig(**WIDE),
    "mamba": MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=4, **ENDS),
    "gemma2": Gemma2Config(**WIDE, head_dim=16),
    "opt": OPTConfig(**SHAPE, ffn_dim=48, word_embed_proj_dim=32),
}
EVERYTHING = (True, True, True)


def network(config: PretrainedConfig) -> ForeignModel:
    made: Any = AutoModelForCausalLM.from_config(config)
    found = ForeignModel(made)
    assert (found.splits, found.masks, found.recomputes) == (False, False, False), "nothing is taken on trust"
    found.examine()
    return found


@pytest.mark.parametrize(
    ("name", "able"),
    [
        ("gpt2", EVERYTHING),
        ("qwen2", EVERYTHING),
        ("llama", EVERYTHING),
        ("mamba", (True, False, True)),  # has no attention
        ("gemma2", (False, True, True)),  # caps its logits after the head
        ("opt", (True, True, False)),  # a recomputed layer would draw another dropout
    ],
)
def test_abilities_are_found_out(name: str, able: tuple[bool, bool, bool]) -> None:
    found = network(CONFIGS[name])
    assert (found.splits, found.masks, found.recomputes) == able
    assert found.vocab_size == VOCABULARY
    assert found.layers == 2


def test_its_parts_make_its_logits_and_it_learns_the_same_when_it_computes_again() -> None:
    found = network(CONFIGS["qwen2"])
    tokens = torch.randint(3, VOCABULARY, (2, 17), generator=torch.Generator().manual_seed(0))
    product = found.hidden(tokens) @ found.head_weight.t()
    torch.testing.assert_close(product, found.logits(tokens), rtol=1e-4, atol=1e-4)
    plain = gradient(found, tokens)
    found.recompute(True)
    recomputed = gradient(found, tokens)
    assert float((recomputed - plain).abs().max()) < 1e-5 * float(plain.abs().max())


@pytest.mark.parametrize("name", ["gpt2", "qwen2"])
def test_documents_apart_have_the_logits_of_each_alone(name: str) -> None:
    found = network(CONFIGS[name])
    tokens = torch.randint(3, VOCABULARY, (1, 20), generator=torch.Generator().manual_seed(0))
    tokens[0, 6] = tokens[0, 13] = 2
    with torch.no_grad():
        together = found.logits(tokens, documents_of(tokens, 2))
        alone = torch.cat([found.logits(part) for part in tokens.split((7, 7, 6), dim=1)], dim=1)
    assert float((together - alone).abs().max()) < 1e-4 * float(alone.abs().max())


def gradient(found: ForeignModel, tokens: Tensor) -> Tensor:
    found.zero_grad()
    found.logits(tokens).logsumexp(-1).sum().backward()  # type: ignore[no-untyped-call]
    return torch.cat([param.grad.flatten() for param in found.parameters() if param.grad is not None])
