"""The part of a sharded tensor that lies on this rank: its rows, in the flat values of the whole tensor."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def is_shard(tensor: Tensor) -> bool:
    """Return whether the tensor is one of `fully_shard`, of which this rank has some rows only."""
    return any(placement.is_shard() for placement in getattr(tensor, "placements", ()))


def local_part(tensor: Any) -> Tensor:
    """Return the memory of this rank's rows; of a tensor that is not sharded, the tensor itself."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def first_element(tensor: Any) -> int:
    """Return where `local_part` begins in the flat values of the whole tensor.

    Rows are dealt as by `torch.chunk`: the last ranks may have fewer than the others, or none."""
    for dimension, placement in enumerate(getattr(tensor, "placements", ())):
        if placement.is_shard():
            mesh, rows = tensor.device_mesh, tensor.shape[0]
            chunk = -(-rows // mesh.size(dimension))
            return int(min(rows, mesh.get_local_rank(dimension) * chunk) * (tensor.numel() // max(1, rows)))
    return 0


def is_first_replica(tensor: Any) -> bool:
    """Return whether this rank has the first of several equal copies of its rows, or the only one."""
    return all(
        tensor.device_mesh.get_local_rank(dimension) == 0
        for dimension, placement in enumerate(tensor.placements)
        if not placement.is_shard()
    )


def placed_as(tensor: Any, part: Tensor) -> Tensor:
    """Return a tensor that is sharded as `tensor`, with `part` as this rank's rows."""
    if not hasattr(tensor, "to_local"):
        return part
    from torch.distributed.tensor import DTensor  # whoever has no such tensor need not wait for its import

    return DTensor.from_local(
        part.to(local_part(tensor).device),
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
