"""Makes the layout of a run: its tensors in fragment order. Bootstrap node, joiner, trainer, checkpoints and reports
all use these functions, so that they cut the model alike."""

from __future__ import annotations

from collections.abc import Sequence

from peer.methods.method import Method
from peer.protocol.model.fragments import cut, cut_problem
from peer.protocol.model.layout import Layout, TensorSpec
from peer.run.sections import LlamaSection, ModelSection


def layout_for(model: ModelSection, method: Method, tensors: Sequence[TensorSpec] | None = None) -> Layout:
    """Return the model's tensors in the order of the method's fragments. `tensors`: those of the layout artifact,
    required for a foreign model. The method must fit them (see `layout_refusal`)."""
    own = own_layout(model, tensors).tensors
    return cut(own, fragments=method.fragments, pattern=_pattern(method), apart=method.fragments_apart)


def own_layout(model: ModelSection, tensors: Sequence[TensorSpec] | None = None) -> Layout:
    """Return the tensors in the model's own order, not cut into fragments. `tensors`: as in `layout_for`."""
    own = tensors_of(model) if isinstance(model, LlamaSection) else tensors
    assert own is not None, "a foreign model needs its layout"
    return Layout.whole(own)


def layout_refusal(method: Method, tensors: Sequence[TensorSpec]) -> str:
    """Return why the method cannot cut a model of these tensors, as a sentence. Empty: it can."""
    return cut_problem(tensors, fragments=method.fragments, pattern=_pattern(method), apart=method.fragments_apart)


def _pattern(method: Method) -> str:
    return "whole" if method.schedule == "full" else method.fragment_layout


def tensors_of(model: LlamaSection) -> list[TensorSpec]:
    """Return names and shapes in the order of the built-in model (`peer.trainer.models.llama`), without torch."""
    hidden, inner = model.hidden_size, model.intermediate_size
    narrow = model.num_key_value_heads * (hidden // model.num_attention_heads)
    block = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (narrow, hidden),
        "self_attn.v_proj": (narrow, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    blocks = [
        TensorSpec(f"model.layers.{number}.{name}.weight", shape)
        for number in range(model.num_hidden_layers)
        for name, shape in block.items()
    ]
    first = TensorSpec("model.embed_tokens.weight", (model.vocab_size, hidden))
    return [first, *blocks, TensorSpec("model.norm.weight", (hidden,))]
