"""What a partner gave in an exchange."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from peer.ports.trainer import WorkSnapshot
from peer.protocol.messages import PeerId


@dataclass(frozen=True, slots=True)
class PartnerOffer:
    """A partner's params, and what they are measured by."""

    peer: PeerId
    work: WorkSnapshot
    share: float
    """The part of our work that was sent."""
    outer: Tensor
    """Our outer_params of the fragment."""
    params: Tensor
    """The partner's, decoded; its outer_params follow them where they travel."""
    tokens: int
    """Of the partner's round, as it says. 0: it did not say."""

    @property
    def theirs(self) -> Tensor:
        """The partner's params alone."""
        return self.params[: self.outer.numel()]

    @property
    def their_outer(self) -> Tensor:
        """The partner's outer_params; empty where they do not travel."""
        return self.params[self.outer.numel() :]
