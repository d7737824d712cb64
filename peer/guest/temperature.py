"""The condition of `--max-temperature`, read from the hottest processor or NVIDIA GPU in degrees Celsius."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psutil

from peer.guest.conditions import ConditionReading

COOLS_BY = 5.0
"""Degrees below the limit at which training resumes."""
PROCESSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal", "acpitz", "amdgpu")
"""Names of processor sensors. Disks and radios are excluded, as they have their own limits."""


class TemperatureSensors:
    """Reads the temperature sensors of this machine. The GPU driver library is initialized once."""

    def __init__(self) -> None:
        self._gpus: list[Any] | None = None

    def hottest(self) -> float | None:
        """Return the highest temperature in degrees Celsius; None: no sensor is readable."""
        return max([*_processors(), *self._of_the_gpus()], default=None)

    def _of_the_gpus(self) -> list[float]:
        import pynvml

        try:
            if self._gpus is None:
                self._gpus = []
                pynvml.nvmlInit()
                self._gpus = [pynvml.nvmlDeviceGetHandleByIndex(at) for at in range(pynvml.nvmlDeviceGetCount())]
            return [float(pynvml.nvmlDeviceGetTemperature(one, pynvml.NVML_TEMPERATURE_GPU)) for one in self._gpus]
        except pynvml.NVMLError:  # no driver, or no readable sensor
            return []


def _processors() -> list[float]:
    sensors = getattr(psutil, "sensors_temperatures", None)  # missing on some systems
    try:
        told = {} if sensors is None else sensors()
    except (OSError, ValueError):
        return []
    return [sensor.current for chip in PROCESSORS for sensor in told.get(chip, ())]


class CoolSource:
    """Reads whether the machine is cool enough: at most `limit` degrees, and after exceeding it, at most `limit` -
    `COOLS_BY`. `read` returns the highest temperature."""

    def __init__(self, limit: float, read: Callable[[], float | None]) -> None:
        self._limit = limit
        self._read = read
        self._hot = False

    async def read(self) -> ConditionReading:
        now = await asyncio.to_thread(self._read)
        if now is None:
            self._hot = False
            return ConditionReading(None, "no sensor tells a temperature of the processor or of an NVIDIA GPU")
        self._hot = now > (self._limit - COOLS_BY if self._hot else self._limit)
        if not self._hot:
            return ConditionReading(True, f"below the limit of {self._limit:g} °C", f"{now:.0f} °C")
        why = f"above the limit of {self._limit:g} °C: goes on at {self._limit - COOLS_BY:g} °C"
        return ConditionReading(False, why, f"{now:.0f} °C")
