"""The built-in model kind `llama`: a pre-norm decoder with RMSNorm, rotary positions, SwiGLU and a tied output.

Tensor names, shapes and the rotary convention (halves, not interleaved pairs) are those of transformers'
`LlamaForCausalLM` with `tie_word_embeddings`, which can therefore load a run's weights unchanged. It has no biases."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction

from peer.protocol.model.layout import Layout, TensorSpec
from peer.run.sections import LlamaSection
from peer.trainer.models.documents import Documents
from peer.trainer.models.flat import views_of
from peer.trainer.models.language_model import LanguageModel

LAST_NORM = 0.35
"""First value of the last norm: see `first_params`."""
_recomputed: Callable[..., Tensor] = CheckpointFunction.apply
"""The function inside torch's `checkpoint`. The decorator around that would import torch._dynamo, which is slow."""


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def _rotary(tokens: int, dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (cos, sin) of the rotary positions (arXiv 2104.09864), each [tokens, dim] fp32.

    Both halves of the last dimension are equal, as in transformers."""
    inverse = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)
    angles = torch.outer(torch.arange(tokens).float(), inverse)
    both = torch.cat((angles, angles), dim=-1)
    return both.cos().to(device), both.sin().to(device)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to x, [batch, heads, tokens, dim]."""
    low, high = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat((-high, low), dim=-1) * sin.to(x.dtype)


class RMSNorm(nn.Module):
    """Root mean square norm over the last dimension (arXiv 1910.07467)."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Causal self-attention; several query heads may share one key and value head."""

    def __init__(self, config: LlamaSection) -> None:
        super().__init__()
        self.dim = config.hidden_size // config.num_attention_heads
        self.shared = config.num_attention_heads // config.num_key_value_heads
        self.theta = config.rope_theta
        narrow = self.dim * config.num_key_value_heads
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, narrow, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, narrow, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, documents: Documents | None) -> Tensor:
        batch, tokens, hidden = x.shape
        cos, sin = _rotary(tokens, self.dim, self.theta, x.device)
        if documents is not None:
            cos, sin = (table[documents.positions].unsqueeze(1) for table in (cos, sin))
        q, k, v = (
            project(x).view(batch, tokens, -1, self.dim).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        if self.shared > 1:
            k, v = k.repeat_interleave(self.shared, dim=1), v.repeat_interleave(self.shared, dim=1)
        if documents is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=documents.visible)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, hidden))
        return out


class MLP(nn.Module):
    """SwiGLU (arXiv 2002.05202)."""

    def __init__(self, config: LlamaSection) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """One layer: attention and MLP, each behind a norm and with a residual connection."""

    def __init__(self, config: LlamaSection) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, documents: Documents | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), documents)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Body(nn.Module):
    """Embedding, layers and last norm. It exists so that the names of tensors are those of transformers."""

    def __init__(self, config: LlamaSection) -> None:
        super().__init__()
        table = torch.empty(config.vocab_size, config.hidden_size)
        # nn.Embedding() would draw random values, which on the meta device imports torch._dynamo, which is slow.
        embedding: nn.Embedding = nn.Embedding.from_pretrained(table, freeze=False)  # type: ignore[no-untyped-call]
        self.embed_tokens = embedding
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Llama(LanguageModel):
    """The complete decoder: from tokens [batch, tokens] int64 to logits [batch, tokens, vocab]."""

    splits = True
    masks = True
    recomputes = True

    def __init__(self, config: LlamaSection) -> None:
        super().__init__()
        self.model = Body(config)
        self.vocab_size = config.vocab_size
        self.layers = config.num_hidden_layers
        self._recomputing = False

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(tokens)

    def logits(self, tokens: Tensor, documents: Documents | None = None) -> Tensor:
        return F.linear(self.hidden(tokens, documents), self.head_weight)

    def hidden(self, tokens: Tensor, documents: Documents | None = None) -> Tensor:
        x = self.model.embed_tokens(tokens)
        recomputing = self._recomputing and torch.is_grad_enabled()
        for layer in self.model.layers:
            x = _recomputed(layer, False, x, documents) if recomputing else layer(x, documents)
        out: Tensor = self.model.norm(x)
        return out

    @property
    def head_weight(self) -> Tensor:
        return self.model.embed_tokens.weight

    def recompute(self, on: bool) -> None:
        self._recomputing = on


def empty_model(config: LlamaSection) -> Llama:
    """Make the model on the meta device, where its parameters have names and shapes but no memory."""
    with torch.device("meta"):
        return Llama(config)


def layout_of(config: LlamaSection) -> Layout:
    """Return a layout of one fragment with all tensors in the order of `named_parameters`. Allocates no tensor."""
    named = empty_model(config).named_parameters()
    return Layout.whole([TensorSpec(name, tuple(param.shape)) for name, param in named])


def first_params(config: LlamaSection, seed: int, layout: Layout | None = None) -> Tensor:
    """Make the run's first outer_params: flat fp32 on the CPU, determined by the arguments alone.

    `layout`: the order of the tensors in the result; None: the model's own. A tensor's values do not depend on it.

    Matrices are normal with standard deviation 1/sqrt(fan-in), the embedding has 1/sqrt(hidden_size), and norms are 1.
    The last norm is smaller (`LAST_NORM`), so that the first predictions are nearly uniform although the embedding is
    also the output layer."""
    own = layout_of(config)
    noise = torch.Generator().manual_seed(seed % 2**63)
    flat = torch.ones(own.elements)
    views = dict(views_of(flat, layout or own))
    for name in (tensor.name for tensor in own.tensors):
        view = views[name]
        if view.dim() == 2:
            view.normal_(0.0, 1.0 / math.sqrt(view.shape[1]), generator=noise)
        elif name == "model.norm.weight":
            view.fill_(LAST_NORM)
    return flat
