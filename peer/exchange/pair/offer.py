"""The values that a partner sent in a swap."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from peer.ports.trainer import WorkSnapshot
from peer.protocol.messages import PeerId


@dataclass(frozen=True, slots=True)
class PartnerOffer:
    """A partner's params, and our values that they are compared with."""

    peer: PeerId
    work: WorkSnapshot
    share: float
    """The share of our work that was sent."""
    outer: Tensor
    """Our outer_params of the fragment."""
    params: Tensor
    """The partner's params, decoded. If the method sends outer_params too, they follow."""
    tokens: int
    """Tokens of the partner's round, as it claims; 0: not given."""

    @property
    def theirs(self) -> Tensor:
        """The partner's params without its outer_params."""
        return self.params[: self.outer.numel()]

    @property
    def their_outer(self) -> Tensor:
        """The partner's outer_params; empty if the method does not send them."""
        return self.params[self.outer.numel() :]
