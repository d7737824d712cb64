"""Matches the tensors of a user's own model with the run's layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from peer.attached.names import clean_name
from peer.attached.shards import first_element, local_part
from peer.errors import ModelError, UsageError
from peer.outer.arithmetic import merge_
from peer.protocol.model.layout import Layout, TensorSpec

SAME_MODEL = "Make the model that the run's manifest describes: `peer manifest show TICKET` shows it."
FP32 = (
    "Keep the parameters in fp32 and compute in bf16 under torch.autocast, or give the fp32 masters as the model: a "
    "mapping of names to tensors."
)

Named = nn.Module | Mapping[str, Tensor]
"""A model, or a mapping of names to its tensors."""


def trained_tensors(model: Named, run: Sequence[TensorSpec] | None = None) -> dict[str, Tensor]:
    """Return the tensors of a model that a run exchanges: those that require a gradient, and those that the run names.

    Tied tensors occur once, under their first name. `run`: the run's tensors; None: not known yet. Raises UsageError
    when two tensors have the same name once the parts of wrappers are removed."""
    wanted = frozenset(spec.name for spec in run or ())
    given = model.named_parameters() if isinstance(model, nn.Module) else model.items()
    found = dict[str, Tensor]()
    for raw, tensor in given:
        name = clean_name(raw)
        if not (tensor.requires_grad or name in wanted or not isinstance(model, nn.Module)):
            continue
        if name in found:
            raise UsageError(f"two parameters of the model are named {name}", "Rename the submodule of one of them.")
        found[name] = tensor
    return found


def match_tensors(model: Named, run: Sequence[TensorSpec]) -> list[Tensor]:
    """Return the model's tensors in the order of the run's.

    Raises ModelError, which names the first difference: a missing or additional name, another shape or dtype, or a
    tensor on the meta device."""
    found = trained_tensors(model, run)
    for spec in run:
        tensor = found.get(spec.name)
        if tensor is None:
            near = _same_shape(spec, found, {other.name for other in run})
            raise ModelError(f"the run's {spec.name} {list(spec.shape)} is not in your model{near}", SAME_MODEL)
        if tuple(tensor.shape) != spec.shape:
            both = f"{list(tensor.shape)} in your model and {list(spec.shape)} in the run"
            raise ModelError(f"{spec.name} is {both}", SAME_MODEL)
        if tensor.is_meta:
            fix = "Give the model memory before joining: model.to_empty(device=...). Its values are replaced anyway."
            raise ModelError(f"{spec.name} is on the meta device: it has no values", fix)
        if tensor.dtype != torch.float32:
            why = "a merge that is below the precision of the parameters would be lost"
            raise ModelError(f"{spec.name} is {tensor.dtype} in your model and torch.float32 in the run", FP32, why)
    others = [name for name in found if name not in {spec.name for spec in run}]
    if others:
        shape = list(found[others[0]].shape)
        fix = f"{SAME_MODEL} A parameter that is not to be exchanged has requires_grad=False."
        raise ModelError(f"{others[0]} {shape} of your model is not in the run", fix)
    return [found[spec.name] for spec in run]


def _same_shape(spec: TensorSpec, found: Mapping[str, Tensor], names: set[str]) -> str:
    """Return a hint that names a tensor of the model with this shape whose name is not in the run. Empty: none has."""
    near = [name for name, tensor in found.items() if name not in names and tuple(tensor.shape) == spec.shape]
    return f". {near[0]} has its shape" if near else ""


def innermost(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer inside the wrappers of Accelerate and Lightning.

    The `step` of a wrapper may only accumulate gradients, so the hook has to be on the inner optimizer."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


def check_optimizers(optimizers: Sequence[torch.optim.Optimizer], tensors: Iterable[Tensor]) -> None:
    """Raise UsageError when the optimizers update none of these tensors."""
    updated = {id(tensor) for one in optimizers for group in one.param_groups for tensor in group["params"]}
    if updated and updated.isdisjoint(map(id, tensors)):
        raise UsageError(
            "the optimizer updates none of the model's parameters",
            "Make the optimizer of the parameters of the model that is given to join(), after it was moved or wrapped.",
        )


class BoundTensors:
    """The live params of a user's model, as a `peer.trainer.boundary.TrainedModel`.

    Unlike those of the built-in loop, the tensors do not lie in one flat vector."""

    def __init__(self, layout: Layout, tensors: Sequence[Tensor]) -> None:
        """`tensors`: the live fp32 tensors, in the order and with the shapes of the layout."""
        self._layout = layout
        self.tensors = list(tensors)
        self.round = 0
        self.step_in_round = 0
        self.lr_scale = 1.0
        """The operator's factor on the learning rate."""

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    def move_to(self, round_: int, step: int) -> None:
        self.round, self.step_in_round = round_, step

    def count_step(self) -> None:
        """Count one inner step of the present round."""
        self.step_in_round += 1

    def scale_learning_rate(self, scale: float) -> None:
        self.lr_scale = scale

    def _parts(self, fragment: int, flat: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
        """Yield (live tensor, its view of `flat`) for a fragment, both in the tensor's shape.

        Of a sharded tensor, both are the rows of this rank. `flat`: the values of the whole fragment."""
        first, end = self._layout.fragments[fragment]
        at = 0
        for whole in self.tensors[first:end]:
            live, start = local_part(whole).detach(), at + first_element(whole)
            yield live, flat[start : start + live.numel()].view(live.shape)
            at += whole.numel()
        assert at == flat.numel(), (at, flat.numel())

    @torch.no_grad()
    def read(self, fragment: int, into: Tensor) -> None:
        for live, part in self._parts(fragment, into):
            part.copy_(live)

    @torch.no_grad()
    def merge(self, fragment: int, outer_params: Tensor, alpha: float) -> None:
        for live, part in self._parts(fragment, outer_params):
            if live.is_contiguous():
                merge_(live.view(-1), part.reshape(-1), alpha)
            else:
                flat = live.reshape(-1)
                merge_(flat, part.reshape(-1), alpha)
                live.copy_(flat.view(live.shape))

    @torch.no_grad()
    def shift(self, fragment: int, difference: Tensor) -> None:
        for live, part in self._parts(fragment, difference):
            live.add_(part.to(live.device))

    def load(self, outer_params: Tensor) -> None:
        """Set all live params to `outer_params`, flat fp32 of the whole model."""
        for fragment in range(len(self._layout.fragments)):
            start, end = self._layout.fragment_span(fragment)
            self.merge(fragment, outer_params[start:end], 0.0)

    def named(self) -> dict[str, Tensor]:
        """Return name in the layout -> live tensor. Of a sharded tensor, only this rank's rows."""
        named = zip(self._layout.tensors, self.tensors, strict=True)
        return {spec.name: local_part(live).detach() for spec, live in named}
