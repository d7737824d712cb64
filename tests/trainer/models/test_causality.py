"""A model that sees later tokens is refused by the gradient of its logits. All kinds of causal models are accepted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, PretrainedConfig

from peer.errors import ModelError
from peer.trainer.models.builder import SHIFTS, build_counted, build_stand_in
from peer.trainer.models.causality import check_causal

ENDS: dict[str, Any] = {"vocab_size": 96, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SHAPE: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, **ENDS}
WIDE: dict[str, Any] = {**SHAPE, "intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8}
ENCODER: dict[str, Any] = {**SHAPE, "intermediate_size": 48}
XLM: dict[str, Any] = {  # masks its padding token, which is one of the first tokens
    "emb_dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "vocab_size": 96,
    "n_words": 96,
}
EXPERTS: dict[str, Any] = {**WIDE, "num_local_experts": 4, "num_experts_per_tok": 2}
CAUSAL: dict[str, tuple[str, dict[str, Any]]] = {
    "absolute positions": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, **ENDS}),
    "rotary": ("llama", WIDE),
    "tied": ("qwen3", WIDE | {"tie_word_embeddings": True}),
    "sliding window": ("gemma2", WIDE | {"sliding_window": 4}),
    "alibi": ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4, **ENDS}),
    "state space": ("mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, **ENDS}),
    "scan in chunks": (
        "mamba2",
        {"hidden_size": 32, "num_heads": 8, "head_dim": 8, "expand": 2, "n_groups": 1, "num_hidden_layers": 2, **ENDS},
    ),
    "experts": ("mixtral", EXPERTS),
    "recurrent": ("rwkv", {"hidden_size": 32, "num_hidden_layers": 2, **ENDS}),
    "decoder of an encoder": ("bert", ENCODER | {"is_decoder": True}),
    "causal xlm": ("xlm", XLM | {"causal": True}),
}
BOTH_WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "bert": (ENCODER, '"is_decoder" to true'),
    "roberta": (ENCODER, '"is_decoder" to true'),
    "electra": (ENCODER | {"embedding_size": 32}, '"is_decoder" to true'),
    "roformer": (ENCODER | {"embedding_size": 32}, '"is_decoder" to true'),
    "xlm": (XLM, '"causal" to true'),
    "xlnet": ({"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48, **ENDS}, "a causal model"),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_model_passes(name: str) -> None:
    kind, values = CAUSAL[name]
    check_causal(build_stand_in(CONFIG_MAPPING[kind](**values)))


@pytest.mark.parametrize("kind", BOTH_WAYS)
def test_a_model_that_sees_later_tokens_is_refused_by_name(kind: str) -> None:
    values, remedy = BOTH_WAYS[kind]
    model = build_stand_in(CONFIG_MAPPING[kind](**values))
    with pytest.raises(ModelError, match=f"{type(model).__name__} sees later tokens") as caught:
        check_causal(model)
    assert remedy in caught.value.fix


class Mixer(nn.Module):
    """A model that mixes the embeddings of all tokens with the given `weights` [to, from]."""

    config = PretrainedConfig()

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = weights
        self.embedding = nn.Embedding(16, 4)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.weights @ self.embedding(input_ids)


def test_the_smallest_share_of_a_later_token_is_found_and_nothing_else() -> None:
    causal = torch.ones(8, 8).tril()
    check_causal(Mixer(causal))
    check_causal(Mixer(causal.fill_diagonal_(0.0)))  # the last embedding is not used at all
    leak = causal.clone()
    leak[0, 7] = 1e-30
    with pytest.raises(ModelError, match="Mixer sees later tokens"):
        check_causal(Mixer(leak))


def test_a_model_that_cannot_be_tried_is_refused() -> None:
    with pytest.raises(ModelError, match="no finite gradient"):
        check_causal(Mixer(torch.zeros(8, 8)))
    with pytest.raises(ModelError, match=r"cannot be computed from tokens alone: RuntimeError"):
        check_causal(Mixer(torch.ones(3, 3)))


def test_a_stand_in_takes_the_memory_of_its_largest_matrix() -> None:
    config = CONFIG_MAPPING["mixtral"](
        **EXPERTS | {"num_hidden_layers": 8, "num_local_experts": 16, "vocab_size": 2**14}
    )
    model = build_stand_in(config)
    stores = {parameter.untyped_storage().data_ptr(): parameter.untyped_storage() for parameter in model.parameters()}
    largest = 2**14 * 32  # the embedding
    assert sum(store.nbytes() for store in stores.values()) < 4 * (largest + 2 * SHIFTS + 2**10)
    plain = build_counted(config, 10**9)
    assert [(name, p.shape) for name, p in model.named_parameters()] == [
        (n, p.shape) for n, p in plain.named_parameters()
    ]
