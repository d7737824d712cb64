"""Choice of the device to train on, and of its precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from peer.errors import UsageError

DeviceChoice = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "fp32", "bf16"]


@dataclass(frozen=True, slots=True)
class Device:
    """The device that trains, with its precision."""

    device: torch.device
    autocast: torch.dtype | None
    """Reduced precision of autocast. None: fp32 throughout."""
    reason: str
    """Reason of the choice, for a person."""


def choose_device(wanted: DeviceChoice, precision: Precision = "auto") -> Device:
    """Choose the device and its precision. Raises UsageError when CUDA is wanted and torch sees no device."""
    if wanted == "cpu":
        return _cpu("asked for", precision)
    if not torch.cuda.is_available():
        if wanted == "cuda":
            raise UsageError("torch sees no CUDA device", "Use --device cpu, or check the driver with nvidia-smi.")
        return _cpu("torch sees no CUDA device", precision)
    autocast, why = _on_cuda(precision)
    return Device(torch.device("cuda"), autocast, f"cuda: {torch.cuda.get_device_name()}{why}")


def _on_cuda(precision: Precision) -> tuple[torch.dtype | None, str]:
    """Return autocast's dtype, and text to append to the reason."""
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "fp32":
        return None, "; fp32: asked for"
    if precision == "bf16":
        return torch.bfloat16, "; bf16 autocast: asked for" + ("" if native else ", though the device emulates it")
    if native:
        return torch.bfloat16, "; bf16 autocast"
    return torch.float16, " has no bf16; fp16 autocast with loss scaling"


def _cpu(why: str, precision: Precision) -> Device:
    autocast, reason = _on_cpu(precision)
    return Device(torch.device("cpu"), autocast, f"cpu: {why}; {reason}")


def _on_cpu(precision: Precision) -> tuple[torch.dtype | None, str]:
    """Return autocast's dtype and its reason. Without matrix units for bf16, the casts cost more than bf16 saves."""
    if precision == "bf16":
        return torch.bfloat16, "bf16 autocast: asked for"
    if precision == "fp32":
        return None, "fp32: asked for"
    if _multiplies_bf16_tiles():
        return torch.bfloat16, "bf16 autocast: this processor has AMX, which multiplies bf16 much faster"
    return None, "fp32"


def _multiplies_bf16_tiles() -> bool:
    """Return whether the processor has AMX tiles for bf16 and the system permits their use."""
    return bool(torch.cpu.get_capabilities().get("amx_bf16", False))
