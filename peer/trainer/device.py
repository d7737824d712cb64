"""Choice of the device that trains, and of its precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from peer.errors import UsageError

DeviceChoice = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "fp32", "bf16"]


@dataclass(frozen=True, slots=True)
class Device:
    device: torch.device
    autocast: torch.dtype | None
    """Reduced precision of autocast; None: fp32 throughout."""
    reason: str


def choose_device(wanted: DeviceChoice, precision: Precision = "auto") -> Device:
    """Choose the device and its precision. Raises UsageError when CUDA is demanded and there is none."""
    if wanted == "cpu":
        return _cpu("asked for", precision)
    if not torch.cuda.is_available():
        if wanted == "cuda":
            raise UsageError("torch sees no CUDA device", "Use --device cpu, or check the driver with nvidia-smi.")
        return _cpu("torch sees no CUDA device", precision)
    autocast, why = _on_cuda(precision)
    return Device(torch.device("cuda"), autocast, f"cuda: {torch.cuda.get_device_name()}{why}")


def _on_cuda(precision: Precision) -> tuple[torch.dtype | None, str]:
    """Return the dtype of autocast, and the end of the reason."""
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
    """Return the dtype of autocast, and its reason. Matrix units alone make bf16 worth its casts."""
    if precision == "bf16":
        return torch.bfloat16, "bf16 autocast: asked for"
    if precision == "fp32":
        return None, "fp32: asked for"
    if _multiplies_bf16_tiles():
        return torch.bfloat16, "bf16 autocast: this processor has AMX, which multiplies bf16 much faster"
    return None, "fp32"


def _multiplies_bf16_tiles() -> bool:
    """Return whether the processor has AMX tiles for bf16, and the system lets us use them."""
    return bool(torch.cpu.get_capabilities().get("amx_bf16", False))
