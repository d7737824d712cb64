"""Attention masks and positions for windows that hold several documents, which must not attend to each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Documents:
    """Positions and masks of windows of equal length."""

    positions: Tensor
    """Position of each token in its document, [windows, tokens] int64."""
    visible: Tensor
    """Whether a token (second to last dimension) attends to another (last): [windows, 1, tokens, tokens] bool."""


def documents_of(tokens: Tensor, end_token: int) -> Documents | None:
    """Find the documents in windows, [windows, tokens]. `end_token` is the last token of a document.

    None: each window is a single document, so that the usual causal mask suffices."""
    ends = tokens == end_token
    if not bool(ends[:, :-1].any()):
        return None
    number = ends.cumsum(1) - ends.long()
    place = torch.arange(tokens.shape[1], device=tokens.device)
    begins = torch.nn.functional.pad(ends[:, :-1], (1, 0), value=True)
    start = torch.where(begins, place, 0).cummax(1).values
    same = number.unsqueeze(2) == number.unsqueeze(1)
    visible = (same & (place.unsqueeze(1) >= place)).unsqueeze(1)
    return Documents(place - start, visible)
