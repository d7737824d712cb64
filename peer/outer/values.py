"""The values that an exchange returns for an outer step. Each kind of them makes another step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class StepConstants(Protocol):
    """The constants of an outer step; a resolved method has them."""

    @property
    def outer_lr(self) -> float: ...

    @property
    def outer_momentum(self) -> float: ...

    @property
    def consensus(self) -> float:
        """The pull towards the partner's outer_params, or towards what it sends. 0: the rule has none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepBlock:
    """A block of a fragment, in the step of a pair or of a peer alone. All are flat fp32 of one length."""

    outer: Tensor
    """It is moved, as is the momentum."""
    momentum: Tensor
    own: Tensor
    """A copy of the own params, which may be overwritten."""
    share: float
    """The part of the own work since the last outer step that counts, in (0, 1]."""
    partner: Tensor | None
    """The partner's params, which are only read. None: there is no partner. It has scaled its share already."""
    partner_outer: Tensor | None
    """The partner's outer_params of before its step, where they travelled."""
    spare: Tensor
    """May be overwritten."""


class StepRule(Protocol):
    """An outer rule (`peer.methods.rule.OuterRule`)."""

    @property
    def corrects(self) -> bool: ...

    def step(self, block: StepBlock, method: StepConstants) -> None: ...

    def descend(self, outer: Tensor, momentum: Tensor, gradient: Tensor, method: StepConstants) -> None: ...

    def correct(self, gradient: Tensor, momentum: Tensor) -> None: ...


class StepMethod(StepConstants, Protocol):
    """A method, as an outer step sees it."""

    @property
    def outer_rule(self) -> StepRule: ...


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
    """Flat fp32 of the fragment. The partner's outer_params follow them where the method sends them
    (`Method.sends_outer`). The partner has scaled its work already."""


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
