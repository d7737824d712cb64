"""Checks that a suitable version of torch is installed, before anything imports torch, because a traceback from inside
torch does not help a user."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
from collections.abc import Iterator
from importlib import metadata

from peer.errors import TorchWrong
from peer.installation import DISTRIBUTION, install_command

_OF_TORCH = re.compile(r"torch\s*(?P<bounds>[<>=!~][^;]*)$")
_BOUND = re.compile(r"(>=|<|==)\s*(\d+(?:\.\d+)*)")


def check_torch() -> str:
    """Return the version of torch. Raises TorchWrong when torch is missing, or its version is outside the range in this
    program's requirements.

    Only the installation's metadata is read; nothing is imported."""
    wanted = _wanted()
    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise TorchWrong(f"torch is not installed for {sys.executable}", _fix(wanted)) from None
    if not fits(found, wanted):
        raise TorchWrong(
            f"torch {found} is installed for {sys.executable}, this program is made for torch {wanted}", _fix(wanted)
        )
    return found


def fits(version: str, bounds: str) -> bool:
    """Return whether a version such as `2.13.0+cpu` is within bounds such as `<2.15,>=2.13`. The part after the plus is
    ignored."""
    have = _numbers(version)
    checks = {">=": lambda bound: have >= bound, "<": lambda bound: have < bound, "==": lambda bound: have == bound}
    return all(checks[kind](_numbers(bound)) for kind, bound in _BOUND.findall(bounds))


def _numbers(version: str) -> tuple[int, ...]:
    """Return the release numbers of a version without trailing zeros, so that 2.13 and 2.13.0 are equal."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else [0]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


@contextlib.contextmanager
def loading_torch() -> Iterator[None]:
    """Context for imports that load torch: converts a failed import of torch to TorchWrong. Calls `check_torch`
    first."""
    check_torch()
    try:
        yield
    except (ImportError, OSError) as error:
        if not _is_torchs(error):
            raise
        reason = str(error).splitlines()[0]
        raise TorchWrong(
            f"torch is installed for {sys.executable}, and cannot be loaded: {reason}", _fix(_wanted())
        ) from error


def import_daemon() -> None:
    """Import the modules of the daemon, which takes seconds. The garbage collector is off meanwhile and afterwards
    ignores the imported objects, which live until the end anyway."""
    gc.disable()
    try:
        import peer.node.peer  # noqa: F401

        gc.freeze()
    finally:
        gc.enable()


def _is_torchs(error: BaseException) -> bool:
    """Return whether an import failed inside torch: a module of torch is in the traceback."""
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "torch":
        return True
    trace = error.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == "torch":
            return True
        trace = trace.tb_next
    return False


def _wanted() -> str:
    """Return the version bounds of torch in our own metadata, as `<2.15,>=2.13`. Empty when this program is not
    installed."""
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return ""
    return next((found["bounds"].strip() for line in requirements if (found := _OF_TORCH.match(line))), "")


def _fix(wanted: str) -> str:
    return f"Run: {install_command([f'torch{wanted}'], again=True)}"
