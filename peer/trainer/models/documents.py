"""Documents within windows: what a token may see, and its position, when documents do not see each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents of some windows of equal length."""

    positions: Tensor
    """Place of each token in its document, [windows, tokens] int64."""
    visible: Tensor
    """Whether a token (last but one dimension) sees another (last): [windows, 1, tokens, tokens] bool."""


def documents_of(tokens: Tensor, end_token: int) -> Documents | None:
    """Return the documents of these windows, [windows, tokens]. `end_token` closes a document and belongs to it.

    None: each window is one document."""
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
