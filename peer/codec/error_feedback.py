"""Error feedback for lossy codecs: the error of one encoded update is added to the next update, so that it is sent
later instead of being lost."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from peer.codec.plain import Codec

DECAY = 0.95
"""Factor on the error carried from one round to the next (SparseLoCo, arXiv 2508.15706)."""


class ErrorFeedback:
    """The error feedback of one fragment. The fragment is sent in several parts, some of which may not arrive."""

    def __init__(self, codec: Codec, decay: float = DECAY) -> None:
        self._codec = codec
        self._decay = decay
        self._residual: Tensor | None = None

    def add_to_(self, update: Tensor) -> Tensor:
        """Add the carried error, times the decay, to `update` (flat fp32) in place, and return it. The carried error
        changes only in `settle`."""
        return update if self._residual is None else update.add_(self._residual, alpha=self._decay)

    def settle(self, wanted: Tensor, spans: Sequence[tuple[int, int]]) -> None:
        """Replace the carried error after a round.

        `wanted` (flat fp32) is the update including feedback, and `spans` the (start, end) ranges of elements that
        arrived, each encoded separately. The new error is, within these ranges, the part of `wanted` that the codec
        lost, and elsewhere all of `wanted`. `wanted` is overwritten and kept."""
        for start, end in spans:
            part = wanted[start:end]
            part.sub_(self._codec.decode(self._codec.encode(part), end - start))
        self._residual = wanted
