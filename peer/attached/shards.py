"""Functions for tensors that are sharded by rows over several ranks (DTensor). They accept ordinary tensors, too."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def is_shard(tensor: Tensor) -> bool:
    """Return whether the tensor is sharded, as by `fully_shard`, so that this rank has only some of its rows."""
    return any(placement.is_shard() for placement in getattr(tensor, "placements", ()))


def local_part(tensor: Any) -> Tensor:
    """Return this rank's rows, sharing their memory. For a tensor that is not sharded: the tensor itself."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def first_element(tensor: Any) -> int:
    """Return the index at which `local_part` begins in the flat values of the whole tensor.

    Rows are distributed as by `torch.chunk`, so that the last ranks may have fewer rows than the others, or none."""
    for dimension, placement in enumerate(getattr(tensor, "placements", ())):
        if placement.is_shard():
            mesh, rows = tensor.device_mesh, tensor.shape[0]
            chunk = -(-rows // mesh.size(dimension))
            return int(min(rows, mesh.get_local_rank(dimension) * chunk) * (tensor.numel() // max(1, rows)))
    return 0


def is_first_replica(tensor: Any) -> bool:
    """Return whether this rank has the only copy of its rows, or the first of several equal copies."""
    return all(
        tensor.device_mesh.get_local_rank(dimension) == 0
        for dimension, placement in enumerate(tensor.placements)
        if not placement.is_shard()
    )


def placed_as(tensor: Any, part: Tensor) -> Tensor:
    """Return a tensor sharded like `tensor`, with `part` as this rank's rows."""
    if not hasattr(tensor, "to_local"):
        return part
    from torch.distributed.tensor import DTensor  # imported here, because the import is slow

    return DTensor.from_local(
        part.to(local_part(tensor).device),
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
