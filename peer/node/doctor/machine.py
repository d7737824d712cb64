"""Checks Python, torch, the processor, GPUs, and the codecs in C. Nothing here imports torch."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from peer.errors import PeerError
from peer.node.doctor.finding import DoctorFinding, failure, fine, warning
from peer.observe.formatting import amount
from peer.observe.status.columns import counted
from peer.process_limits import check_open_files, open_file_limits

KERNELS = "peer.codec._kernels"
BUSY = 1.5
"""Runnable processes per core above which training is slowed down."""
TORCH_WITH_CUDA = "Install a torch for your GPU: https://pytorch.org/get-started/locally/"


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A GPU as its driver describes it. Memory in bytes."""

    name: str
    total: int
    free: int


def python() -> DoctorFinding:
    """Return the finding that names the interpreter. An unsupported interpreter fails earlier."""
    return fine("python", f"{platform.python_version()} in {sys.executable}, {platform.system()} {platform.machine()}")


def torch_version(check: Callable[[], str]) -> DoctorFinding:
    """Check the installed torch. `check`: returns its version, or raises TorchWrong."""
    try:
        return fine("torch", check())
    except PeerError as error:
        return failure("torch", error)


def open_files() -> DoctorFinding:
    """Check that a daemon may open enough files."""
    try:
        check_open_files()
    except PeerError as error:
        return failure("open files", error)
    hard = open_file_limits()[1]
    return fine("open files", "no limit" if math.isinf(hard) else f"a daemon may open {hard:,.0f}")


def processor(cores: int | None = None, load: float | None = None) -> DoctorFinding:
    """Check whether the processor has time to spare. `load`: runnable processes, averaged over the last minute."""
    cores = cores or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count() or 1
    load = psutil.getloadavg()[0] if load is None else load
    measured = f"{counted(cores, 'core')}, for which {load:.1f} processes ran or waited on average in the last minute"
    if load > BUSY * cores:
        return warning("processor", measured, "End other programs, or give the trainer less with --threads or --speed.")
    return fine("processor", measured)


def accelerators(found: Sequence[Accelerator], wanted: str, torch_build: str) -> DoctorFinding:
    """Check whether the GPUs of this machine can be used. `torch_build`: version of torch, such as `2.13.0+cpu` for a
    build without CUDA."""
    named = "; ".join(f"{gpu.name}, {amount(gpu.free, 'bytes')} of {amount(gpu.total, 'bytes')} free" for gpu in found)
    if not named:
        return fine("gpu", "no NVIDIA GPU is here: training is on the processor")
    if wanted == "cpu":
        return fine("gpu", f"{named}; not used (--device cpu)")
    if torch_build.endswith("+cpu"):
        return warning("gpu", f"{named}; torch {torch_build} is built for the processor alone", TORCH_WITH_CUDA)
    return fine("gpu", named)


def nvidia() -> list[Accelerator]:
    """Return the GPUs that NVIDIA's driver lists. Empty: there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        return [_accelerator(pynvml.nvmlDeviceGetName(one), pynvml.nvmlDeviceGetMemoryInfo(one)) for one in handles]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _accelerator(name: str | bytes, memory: object) -> Accelerator:
    text = name.decode(errors="replace") if isinstance(name, bytes) else name
    return Accelerator(text, int(getattr(memory, "total", 0)), int(getattr(memory, "free", 0)))


def kernels(module: str = KERNELS, wish: str | None = None) -> DoctorFinding:
    """Check the codecs in C. Without them the slower ones in torch are used, with the same results."""
    wish = os.environ.get("PEER_KERNELS", "best") if wish is None else wish
    if wish == "torch":
        return warning("kernels", "PEER_KERNELS=torch: the codecs in C are not used", "Unset PEER_KERNELS.")
    if importlib.util.find_spec(module) is None:
        return warning(
            "kernels",
            "the codecs in C are not installed: encoding and decoding is slower",
            f"Install a wheel that has them for {sys.executable}, or a C compiler and then this program again: "
            "peer help install which-kernels",
        )
    try:
        used = importlib.import_module(module).use(wish)
    except (ImportError, ValueError) as error:
        fix = f"Install this program again for {sys.executable}: peer help install which-kernels"
        return warning("kernels", f"the codecs in C cannot be loaded: {error}", fix)
    return fine("kernels", f"codecs in C, for {used}")
