"""Removes from parameter names what the wrappers of a training loop add to them."""

from __future__ import annotations

WRAPPERS = frozenset({"module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
"""Name parts added by DistributedDataParallel, torch.compile, activation checkpointing and FSDP 1."""


def clean_name(name: str) -> str:
    """Return a parameter's name without the parts that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)
