"""The longest window of a model is found by trying, even if the config states another length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING

from peer.errors import ModelError
from peer.trainer.models import longest
from peer.trainer.models.builder import build_shell, build_stand_in
from peer.trainer.models.foreign import ForeignModel
from peer.trainer.models.longest import check_length
from tests.support.seeds import nightly

ENDS: dict[str, Any] = {"vocab_size": 96, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
SHAPE: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, **ENDS}
WIDE: dict[str, Any] = {**SHAPE, "intermediate_size": 48, "max_position_embeddings": 64}
DECODER: dict[str, Any] = {
    "d_model": 32,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    **ENDS,
}
GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **ENDS}
LIMITED: dict[str, tuple[dict[str, Any], int]] = {
    "roberta": (WIDE | {"is_decoder": True}, 62),
    "camembert": (WIDE | {"is_decoder": True}, 62),
    "xlm-roberta": (WIDE | {"is_decoder": True, "pad_token_id": 3}, 60),
    "opt": (WIDE | {"ffn_dim": 48, "word_embed_proj_dim": 32}, 64),
    "gpt2": (GPT2, 64),
    "codegen": (GPT2 | {"rotary_dim": 4, "n_ctx": 64}, 64),
    "bart": (DECODER, 64),
    "biogpt": (WIDE, 64),
    "mpt": ({"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64, "vocab_size": 96}, 64),
    "whisper": (DECODER | {"max_target_positions": 64}, 64),
}
"""Per kind: a config, and the tokens that such a model takes at most."""
UNLIMITED: dict[str, dict[str, Any]] = {
    "llama": WIDE,
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, **ENDS},
    "xglm": {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48, **ENDS},
    "mixtral": WIDE | {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2},
    "rwkv": {"hidden_size": 32, "num_hidden_layers": 2, **ENDS},
}


DAILY = {"xlm-roberta", "opt", "gpt2", "whisper", "llama"}
"""The kinds that differ most in how they end."""


def works(kind: str, values: dict[str, Any], tokens: int) -> bool:
    """Return whether the real model works with a window of this number of tokens."""
    network = ForeignModel(build_stand_in(CONFIG_MAPPING[kind](**values)))
    try:
        with torch.no_grad():
            network.logits(torch.full((1, tokens), 5))
    except (IndexError, RuntimeError):
        return False
    return True


@pytest.mark.parametrize(
    "kind",
    [*sorted(LIMITED.keys() & DAILY), *nightly(sorted(LIMITED.keys() - DAILY))],
)
def test_the_longest_window_is_named(kind: str) -> None:
    values, most = LIMITED[kind]
    assert works(kind, values, most)
    assert not works(kind, values, most + 1)
    model = build_shell(CONFIG_MAPPING[kind](**values))
    check_length(model, most)
    for context in (most + 1, 200):
        with pytest.raises(ModelError, match=f"works with {most} and fails with {most + 1} ") as caught:
            check_length(model, context)
        assert f"--set context={most})" in caught.value.fix


@pytest.mark.parametrize("kind", [*sorted(UNLIMITED.keys() & DAILY), *nightly(sorted(UNLIMITED.keys() - DAILY))])
def test_a_model_without_a_limit_passes(kind: str) -> None:
    assert works(kind, UNLIMITED[kind], 200)
    check_length(build_shell(CONFIG_MAPPING[kind](**UNLIMITED[kind])), 200)


def test_a_model_that_takes_too_long_to_try_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longest, "TRIAL_S", 0.0)
    check_length(build_shell(CONFIG_MAPPING["gpt2"](**GPT2)), 65)
