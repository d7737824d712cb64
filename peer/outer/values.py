"""The values that an exchange returns for an outer step. Each kind of them makes another step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class OuterRule(Protocol):
    """The constants of an outer step; a resolved method has them."""

    @property
    def rule(self) -> str:
        """`noloco`, `gasloc`, `nesterov` or `sgd`."""

    @property
    def outer_lr(self) -> float: ...

    @property
    def outer_momentum(self) -> float: ...

    @property
    def consensus(self) -> float:
        """NoLoCo's gamma, the pull towards the partner's outer_params, or GASLoC's, the pull towards what the partner
        sends. The other rules have none."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnWork:
    """This peer's snapshot of a fragment, for a solo step. The step only reads it."""

    params: Tensor
    """Flat fp32 of the fragment."""
    share: float
    """The part of the work since the last outer step that counts, in (0, 1]."""


@dataclass(frozen=True, slots=True, eq=False)
class PartnerParams:
    """A partner's decoded params, for the step of a pair. The step only reads them."""

    own: OwnWork
    partner: Tensor
    """Flat fp32 of the fragment. The partner's outer_params follow them where noloco has a consensus of its own. The
    partner has scaled its share already, and with gasloc taken its outer_lr of it."""


@dataclass(frozen=True, slots=True, eq=False)
class MeanGradient:
    """A group's mean pseudo-gradient. The step overwrites it."""

    gradient: Tensor
    """Flat fp32 of the fragment; outside the spans it may hold anything."""
    spans: Sequence[tuple[int, int]]
    """Ascending half-open ranges of elements. Params and momentum between them stay as they are."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupState:
    """The group's state of a fragment, which replaces ours. Flat fp32 both. Afterwards `params` holds the difference
    to what ours were."""

    params: Tensor
    momentum: Tensor


@dataclass(frozen=True, slots=True)
class NoStep:
    """Nothing to step with: the fragment's state stays."""

    digest: bytes = b""
    """The digest of that state, where the members of a group compare it."""


OuterValues = OwnWork | PartnerParams | MeanGradient | GroupState | NoStep
