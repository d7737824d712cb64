"""The live params of a model that several ranks train together.

Each rank copies its own rows to and from shared memory, so that no rank needs memory for the whole model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from peer.attached.params import BoundTensors, Named
from peer.attached.ranks import Ranks
from peer.attached.shards import is_first_replica, is_shard
from peer.protocol.model.layout import Layout
from peer.trainer.arena import Arena, map_values
from peer.trainer.ipc import Message
from peer.trainer.models.flat import views_of

WHOLE = "ranks.bin"
"""File of fp32 values of the whole model, for values that are not in the arena: the live params that rank 0 evaluates,
and results whose slot the daemon has reused. It is created when it is needed, and unlinked once all ranks have mapped
it."""


def reshard(model: Named) -> None:
    """Make modules of `fully_shard` free the full parameters that an earlier forward pass has gathered.

    Until then the model's named parameters are the full ones, and a merge into the shards would have no effect on
    them."""
    if isinstance(model, nn.Module):
        modules: Iterable[Any] = model.modules()
        for module in modules:
            if hasattr(module, "set_reshard_after_backward"):
                module.reshard()


class RankTensors(BoundTensors):
    """The params of one rank, which reads and writes its own rows. Params that are not sharded are read by rank 0."""

    def __init__(self, layout: Layout, tensors: Sequence[Tensor], rank: int, arena: Arena, folder: Path) -> None:
        super().__init__(layout, tensors)
        self._rank = rank
        self._arena = arena
        self._folder = folder
        self._whole: Tensor | None = None
        self.sharded = any(is_shard(tensor) for tensor in tensors)

    def _owns_rows(self, tensor: Tensor) -> bool:
        return is_first_replica(tensor) if is_shard(tensor) else self._rank == 0

    def map_whole(self, *, create: bool) -> None:
        self._whole = map_values(self._folder / WHOLE, self._layout.elements, create=create)

    def shared(self, place: str, fragment: int) -> Tensor:
        """Return a fragment's part of shared memory: `out` and `inn` are in the arena, `whole` is the file `WHOLE`."""
        whole = self._whole if place == "whole" else self._arena.out if place == "out" else self._arena.inn
        assert whole is not None
        start, end = self._layout.fragment_span(fragment)
        return whole[start:end]

    def execute(self, order: Message) -> None:
        """Execute an order of rank 0's `LeadTensors` on the rows of this rank."""
        if order["op"] == "map":
            self.map_whole(create=False)
            return
        fragment, shared = order["fragment"], self.shared(order["place"], order["fragment"])
        if order["op"] == "read":
            self.read(fragment, shared)
        elif order["op"] == "merge":
            self.merge(fragment, shared, order["alpha"])
        else:
            self.shift(fragment, shared)


class LeadTensors(RankTensors):
    """Rank 0's view of the params: each operation is executed on all ranks, by orders to the followers."""

    def __init__(self, layout: Layout, tensors: Sequence[Tensor], ranks: Ranks, arena: Arena, folder: Path) -> None:
        super().__init__(layout, tensors, 0, arena, folder)
        self._ranks = ranks
        self._others = ranks.world > 1
        self._gathered = False
        """Whether `whole` holds the present values of the live params."""

    def count_step(self) -> None:
        super().count_step()
        self._gathered = False

    def read(self, fragment: int, into: Tensor) -> None:
        if self._others and self.sharded:
            assert into.data_ptr() == self._arena.out_slot(fragment).data_ptr(), "other ranks write into shared memory"
            self._read(fragment, "out")
        else:
            super().read(fragment, into)

    def _read(self, fragment: int, place: str) -> None:
        self._ranks.order("read", fragment=fragment, place=place)
        super().read(fragment, self.shared(place, fragment))
        self._ranks.wait_answers()

    def merge(self, fragment: int, outer_params: Tensor, alpha: float) -> None:
        self._gathered = False
        if self._others:
            self._ranks.order("merge", fragment=fragment, place=self._share(fragment, outer_params), alpha=alpha)
        super().merge(fragment, outer_params, alpha)
        if self._others:
            self._ranks.wait_answers()

    def shift(self, fragment: int, difference: Tensor) -> None:
        self._gathered = False
        if self._others:
            self._ranks.order("shift", fragment=fragment, place=self._share(fragment, difference))
        super().shift(fragment, difference)
        if self._others:
            self._ranks.wait_answers()

    def _share(self, fragment: int, values: Tensor) -> str:
        """Return the name of the shared memory that holds these values of a fragment. Copies them there if needed."""
        if values.data_ptr() == self._arena.in_slot(fragment).data_ptr():
            return "inn"
        self._ensure_whole()
        self._gathered = False
        self.shared("whole", fragment).copy_(values)
        return "whole"

    def _ensure_whole(self) -> None:
        if self._whole is None:
            self.map_whole(create=True)
            try:
                self._ranks.order("map")
                self._ranks.wait_answers()
            finally:
                (self._folder / WHOLE).unlink(missing_ok=True)

    @torch.no_grad()
    def whole_named(self) -> dict[str, Tensor]:
        """Return name in the layout -> complete live tensor.

        If the params are sharded, the tensors are on the CPU, in shared memory that all ranks have written to."""
        if not (self._others and self.sharded):
            return self.named()
        self._ensure_whole()
        if not self._gathered:
            for fragment in range(len(self._layout.fragments)):
                self._read(fragment, "whole")
            self._gathered = True
        assert self._whole is not None
        return dict(views_of(self._whole, self._layout))
