"""The limit of `--max-temperature`: the hottest processor or NVIDIA GPU, in degrees Celsius."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psutil

from peer.guest.conditions import ConditionReading

COOLS_BY = 5.0
"""Degrees below the limit at which training goes on."""
PROCESSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal", "acpitz", "amdgpu")
"""Sensors of processors. Those of disks and radios have limits of their own."""


def hottest() -> float | None:
    """Return the highest temperature. None: no sensor tells one."""
    found = [*_processors(), *_gpus()]
    return max(found, default=None)


def _processors() -> list[float]:
    sensors = getattr(psutil, "sensors_temperatures", None)  # not there on every system
    try:
        told = {} if sensors is None else sensors()
    except (OSError, ValueError):
        return []
    return [sensor.current for chip in PROCESSORS for sensor in told.get(chip, ())]


def _gpus() -> list[float]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(at) for at in range(pynvml.nvmlDeviceGetCount())]
        return [float(pynvml.nvmlDeviceGetTemperature(one, pynvml.NVML_TEMPERATURE_GPU)) for one in handles]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


class CoolSource:
    """Whether the machine is cool enough: up to `limit`, and after that only `COOLS_BY` degrees below it."""

    def __init__(self, limit: float, read: Callable[[], float | None] = hottest) -> None:
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
            return ConditionReading(True, f"{now:.0f} °C, limit {self._limit:g} °C")
        back = self._limit - COOLS_BY
        return ConditionReading(False, f"{now:.0f} °C, limit {self._limit:g} °C: goes on at {back:g} °C")
