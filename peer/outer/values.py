"""The values that an exchange returns for an outer step. Each class leads to a different step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class StepConstants(Protocol):
    """The constants of an outer step. A resolved method has them."""

    @property
    def outer_lr(self) -> float: ...

    @property
    def outer_momentum(self) -> float: ...

    @property
    def consensus(self) -> float:
        """Strength of the pull towards the partner's outer_params, or towards what it sends. 0: the rule has no such
        pull."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepBlock:
    """One block of a fragment in the step of a pair or of a peer alone. All tensors are flat fp32 of the same
    length."""

    outer: Tensor
    """outer_params of the block. The step changes it and `momentum` in place."""
    momentum: Tensor
    own: Tensor
    """Copy of this peer's params, which the step may overwrite."""
    share: float
    """Fraction of the own work since the last outer step that counts, in (0, 1]."""
    partner: Tensor | None
    """The partner's params, read only, already scaled by its share. None: there is no partner."""
    partner_outer: Tensor | None
    """The partner's outer_params before its step. None: the method does not send them."""
    spare: Tensor
    """Scratch memory."""


class StepRule(Protocol):
    """Interface of an outer rule (`peer.methods.rule.OuterRule`)."""

    @property
    def corrects(self) -> bool: ...

    def step(self, block: StepBlock, method: StepConstants) -> None: ...

    def descend(self, outer: Tensor, momentum: Tensor, gradient: Tensor, method: StepConstants) -> None: ...

    def correct(self, gradient: Tensor, momentum: Tensor) -> None: ...


class StepMethod(StepConstants, Protocol):
    """The part of a method that an outer step uses."""

    @property
    def outer_rule(self) -> StepRule: ...


@dataclass(frozen=True, slots=True, eq=False)
class OwnWork:
    """This peer's snapshot of a fragment, for a solo step, which only reads it."""

    params: Tensor
    """Flat fp32 of the fragment."""
    share: float
    """Fraction of the work since the last outer step that counts, in (0, 1]."""


@dataclass(frozen=True, slots=True, eq=False)
class PartnerParams:
    """A partner's decoded params, for the step of a pair, which only reads them."""

    own: OwnWork
    partner: Tensor
    """Flat fp32 of the fragment, already scaled by the partner's share. The partner's outer_params follow if the method
    sends them (`Method.sends_outer`)."""


@dataclass(frozen=True, slots=True, eq=False)
class MeanGradient:
    """A group's mean pseudo-gradient, which the step overwrites."""

    gradient: Tensor
    """Flat fp32 of the fragment. Values outside the spans are undefined."""
    spans: Sequence[tuple[int, int]]
    """Ascending half-open element ranges. Params and momentum outside of them do not change."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupState:
    """A fragment's outer_params and momentum from the group, which replace ours; both flat fp32. After the step,
    `params` contains the difference to our previous outer_params."""

    params: Tensor
    momentum: Tensor


@dataclass(frozen=True, slots=True)
class NoStep:
    """No values: the state of the fragment does not change."""

    digest: bytes = b""
    """In a group: digest of the fragment's state, which the members compare. Otherwise empty."""


OuterValues = OwnWork | PartnerParams | MeanGradient | GroupState | NoStep
