"""Error feedback: what a codec lost of one update is added to the next, so that nothing is lost for good."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from peer.codec.plain import Codec

DECAY = 0.95
"""Part of the error that is kept from one round to the next (SparseLoCo, arXiv 2508.15706)."""


class ErrorFeedback:
    """The error feedback of one fragment, whose parts may arrive or not."""

    def __init__(self, codec: Codec, decay: float = DECAY) -> None:
        self._codec = codec
        self._decay = decay
        self._residual: Tensor | None = None

    def add_to_(self, update: Tensor) -> Tensor:
        """Add the error that was lost to `update` (flat fp32), in place. Without `settle` in between, a second call
        gives the same."""
        return update if self._residual is None else update.add_(self._residual, alpha=self._decay)

    def settle(self, wanted: Tensor, spans: Sequence[tuple[int, int]]) -> None:
        """Keep the error of the sent values. `spans`: the spans of elements that arrived, each coded for itself. There
        the codec's loss is kept, elsewhere everything. `wanted` is overwritten and kept."""
        for start, end in spans:
            part = wanted[start:end]
            part.sub_(self._codec.decode(self._codec.encode(part), end - start))
        self._residual = wanted
