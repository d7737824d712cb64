"""Continues a text with a run's model, by sampling one token after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from peer.errors import UsageError
from peer.result.model import OpenedRun, RunModel
from peer.result.network import limit_memory, network_of
from peer.result.text import TextCoder
from peer.trainer.models.language_model import LanguageModel


@dataclass(frozen=True, slots=True)
class Sampling:
    """Parameters of the sampling of tokens."""

    max_tokens: int
    temperature: float
    """0: always the most likely token."""
    top_p: float
    """Probability mass of the tokens that are sampled from (nucleus sampling)."""
    seed: int


def prompt_tokens(run: OpenedRun, coder: TextCoder, prompt: str) -> list[int]:
    """Return the tokens of a prompt. An empty prompt becomes the end token, which begins a document. Raises UsageError
    if the run has no end token."""
    tokens = coder.encode(prompt)
    end = run.manifest.tokenizer.end_token
    if not tokens and end is not None:
        return [end]
    if not tokens:
        raise UsageError("the prompt is empty, and this run's tokens do not tell where a text begins", "Add a word.")
    return tokens


def sample(model: RunModel, device: torch.device, prompt: Sequence[int], how: Sampling) -> Iterator[int]:
    """Yield the tokens that follow a prompt, until the run's end token or `max_tokens`.

    The model sees at most `train.context` tokens at once. The same seed gives the same tokens on the same machine. The
    memory of this process is limited until the generator ends. Raises ModelError and MachineTooSmall."""
    section, context = model.run.manifest.tokenizer, model.run.manifest.train.context
    noise = torch.Generator().manual_seed(how.seed)
    tokens = list(prompt)
    with limit_memory(model.run, device, "generating with"):
        network = network_of(model, device)
        for _ in range(how.max_tokens):
            logits = _last_logits(network, tokens[-context:], device)[: section.vocab_size]
            token = draw(logits, how.temperature, how.top_p, noise)
            if token == section.end_token:
                return
            tokens.append(token)
            yield token


@torch.inference_mode()
def _last_logits(network: LanguageModel, tokens: Sequence[int], device: torch.device) -> Tensor:
    """Return the logits for the token after `tokens`: fp32, on the CPU, shape (vocabulary,)."""
    window = torch.tensor([list(tokens)], device=device)
    if network.splits:
        logits = F.linear(network.hidden(window)[0, -1], network.head_weight)
    else:
        logits = network.logits(window)[0, -1]
    return logits.float().cpu()


@torch.inference_mode()
def draw(logits: Tensor, temperature: float, top_p: float, noise: torch.Generator) -> int:
    """Sample a token from the smallest set of most likely tokens whose probability is at least `top_p`."""
    if temperature == 0.0:
        return int(logits.argmax())
    chances, order = torch.softmax(logits / temperature, 0).sort(descending=True, stable=True)
    before = chances.cumsum(0) - chances
    kept = chances.masked_fill((before >= top_p) & (before > 0), 0.0)
    return int(order[torch.multinomial(kept, 1, generator=noise)])
