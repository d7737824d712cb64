"""The machine and software of a measurement, and resource counters of a process."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from peer import __version__

LIBRARIES = ("torch", "numpy", "grpcio", "uvloop", "hivemind", "bitsandbytes", "torchao")
MIB = 2**20
CHECKOUT = Path(__file__).parents[3]


def facts() -> dict[str, Any]:
    """Return as JSON: `machine`, `versions` (of this program, Python and the compared libraries), `commit` (see
    `commit`) and the load of the last minute."""
    return {"machine": machine(), "versions": versions(), "commit": commit(), "load": round(os.getloadavg()[0], 2)}


def machine() -> dict[str, Any]:
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "cores_allowed": allowed,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
    }


def versions() -> dict[str, str]:
    found = {"peer": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def commit(checkout: Path = CHECKOUT) -> str:
    """Return the short commit of the checkout, with a `+` if tracked files differ from it. Empty: no checkout.

    Looks for .git in this folder only: an installed program may be inside the checkout of another project, whose commit
    says nothing about this program and whose settings may let git run programs."""
    if not (checkout / ".git").exists():
        return ""
    try:
        head = _git(checkout, "rev-parse", "--short", "HEAD").strip()
        return head + ("+" if _git(checkout, "status", "--porcelain", "--untracked-files=no").strip() else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(where: Path, *arguments: str) -> str:
    command = ["git", "-C", str(where), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout  # noqa: S603


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


# -- of one process, on Linux ----------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float | None:
    """Return the processor seconds that a process has used so far, with its threads and without its children. None: the
    system does not report them."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(what: str = "VmRSS") -> float:
    """Return the memory of this process in MiB. `VmRSS`: now. `VmHWM`: its peak since `forget_peak`. Linux only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no {what}: not Linux")


def forget_peak() -> None:
    """Reset the peak `VmHWM`."""
    Path("/proc/self/clear_refs").write_text("5")
