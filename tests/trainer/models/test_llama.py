from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from peer.run.sections import LlamaSection
from peer.trainer.models.flat import views_of
from peer.trainer.models.llama import empty_model, first_params, layout_of

SMALL = LlamaSection(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=16,
    rope_theta=100.0,
    rms_norm_eps=1e-3,
)


def bound(config: LlamaSection, flat: torch.Tensor) -> torch.nn.Module:
    model = empty_model(config)
    model.load_state_dict(dict(views_of(flat, layout_of(config))), assign=True)
    return model


def test_logits_are_those_of_transformers() -> None:
    """The expected numbers are from LlamaForCausalLM of transformers 5.23 with the same weights.

    An error in norms, rotary convention, shared key and value heads, SwiGLU or the tied output would change them."""
    layout = layout_of(SMALL)
    assert layout.elements == 4432
    flat = torch.arange(layout.elements, dtype=torch.float64).mul(0.7).sin().float()
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]])
    logits = bound(SMALL, flat)(tokens).detach()
    last = [3.1035321, 1.9711519, -2.3032258, -2.9062839, 1.1232461, 3.3623323]
    torch.testing.assert_close(logits[0, -1, :6], torch.tensor(last), atol=2e-5, rtol=1e-5)
    middle = [-2.0737197, -0.3616843, 1.9268724]
    torch.testing.assert_close(logits[0, 5, :3], torch.tensor(middle), atol=2e-5, rtol=1e-5)
    assert float(logits.abs().mean()) == pytest.approx(1.3898182, abs=1e-5)


def test_later_tokens_do_not_reach_back() -> None:
    model = bound(SMALL, first_params(SMALL, 3))
    one = torch.tensor([[1, 2, 3, 4, 5]])
    other = torch.tensor([[1, 2, 3, 9, 9]])
    torch.testing.assert_close(model(one)[:, :3], model(other)[:, :3])


def test_layout_has_the_names_and_shapes_of_transformers() -> None:
    layout = layout_of(SMALL)
    shapes = {tensor.name: tensor.shape for tensor in layout.tensors}
    layer = "model.layers.1."
    assert shapes["model.embed_tokens.weight"] == (32, 16)
    assert shapes["model.norm.weight"] == (16,)
    assert {name.removeprefix(layer): shape for name, shape in shapes.items() if name.startswith(layer)} == {
        "self_attn.q_proj.weight": (16, 16),
        "self_attn.k_proj.weight": (8, 16),
        "self_attn.v_proj.weight": (8, 16),
        "self_attn.o_proj.weight": (16, 16),
        "mlp.gate_proj.weight": (24, 16),
        "mlp.up_proj.weight": (24, 16),
        "mlp.down_proj.weight": (16, 24),
        "input_layernorm.weight": (16,),
        "post_attention_layernorm.weight": (16,),
    }
    assert len(shapes) == 2 * 9 + 2, "no biases, no lm_head"
    assert layout.fragments == ((0, 20),)


def test_layout_of_a_large_model_takes_no_memory() -> None:
    large = LlamaSection(
        hidden_size=2**14,
        intermediate_size=2**16,
        num_hidden_layers=100,
        num_attention_heads=128,
        num_key_value_heads=8,
    )
    assert layout_of(large).elements > 3e11


def test_first_params_are_a_function_of_the_seed_and_keep_the_global_generator() -> None:
    before = torch.get_rng_state()
    one, again, other = first_params(SMALL, 7), first_params(SMALL, 7), first_params(SMALL, 8)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(before, torch.get_rng_state())


def test_first_params_are_scaled_by_fan_in() -> None:
    config = LlamaSection()
    spread = {name: float(view.std()) for name, view in views_of(first_params(config, 0), layout_of(config))}
    assert spread["model.embed_tokens.weight"] == pytest.approx(64**-0.5, rel=0.03)
    assert spread["model.layers.0.mlp.up_proj.weight"] == pytest.approx(64**-0.5, rel=0.03)
    assert spread["model.layers.0.mlp.down_proj.weight"] == pytest.approx(176**-0.5, rel=0.03)
    assert spread["model.layers.0.input_layernorm.weight"] == 0.0


def test_the_first_loss_is_near_that_of_guessing() -> None:
    config = LlamaSection()
    tokens = torch.randint(0, 256, (16, 65), generator=torch.Generator().manual_seed(0))
    logits = bound(config, first_params(config, 0))(tokens[:, :-1]).detach()
    loss = float(F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))
    assert loss == pytest.approx(math.log(256), abs=0.1)
