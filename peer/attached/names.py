"""Names of parameters, as they are without the wrappers that a training loop puts around its model."""

from __future__ import annotations

WRAPPERS = frozenset({"module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
"""Parts of a name that a wrapper adds: of DistributedDataParallel, torch.compile, activation checkpointing, FSDP 1."""


def clean_name(name: str) -> str:
    """Return a parameter's name without the parts that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)
