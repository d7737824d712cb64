"""Choice of the device that trains, and of its precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from peer.errors import UsageError

DeviceChoice = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Device:
    device: torch.device
    autocast: torch.dtype | None
    """Reduced precision of autocast; None: fp32 throughout."""
    reason: str


def choose_device(wanted: DeviceChoice) -> Device:
    """Choose the device. Raises UsageError when CUDA is demanded and there is none."""
    if wanted == "cpu":
        return Device(torch.device("cpu"), None, "cpu: asked for; fp32")
    if not torch.cuda.is_available():
        if wanted == "cuda":
            raise UsageError("torch sees no CUDA device", "Use --device cpu, or check the driver with nvidia-smi.")
        return Device(torch.device("cpu"), None, "cpu: torch sees no CUDA device; fp32")
    name = torch.cuda.get_device_name()
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return Device(torch.device("cuda"), torch.bfloat16, f"cuda: {name}; bf16 autocast")
    return Device(torch.device("cuda"), torch.float16, f"cuda: {name} has no bf16; fp16 autocast with loss scaling")
