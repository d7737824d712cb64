"""The check that the right torch is installed. It runs first, for a traceback from inside torch helps nobody."""

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
    """Return the version of torch. Raise TorchWrong when torch is missing or has a version outside the range that this
    program's requirements name.

    It reads the installation's metadata only, and imports nothing."""
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
    """Whether a version, as `2.13.0+cpu`, keeps bounds, as `<2.15,>=2.13`. The part after the plus does not count."""
    have = _numbers(version)
    checks = {">=": lambda bound: have >= bound, "<": lambda bound: have < bound, "==": lambda bound: have == bound}
    return all(checks[kind](_numbers(bound)) for kind, bound in _BOUND.findall(bounds))


def _numbers(version: str) -> tuple[int, ...]:
    """The release of a version, without the zeros at its end: 2.13 and 2.13.0 are one."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else [0]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


@contextlib.contextmanager
def loading_torch() -> Iterator[None]:
    """Around the imports that load torch, after `check_torch`: raises TorchWrong when it is there but cannot be
    loaded."""
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
    """Import the daemon of a peer, which takes seconds. Imported objects stay, so the garbage collector is off
    meanwhile and never looks through them later."""
    gc.disable()
    try:
        import peer.node.peer  # noqa: F401

        gc.freeze()
    finally:
        gc.enable()


def _is_torchs(error: BaseException) -> bool:
    """Whether the import failed inside torch: a file of it is on the way the error came."""
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "torch":
        return True
    trace = error.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == "torch":
            return True
        trace = trace.tb_next
    return False


def _wanted() -> str:
    """Return the bounds that our own metadata names, as `<2.15,>=2.13`. Empty when this program is not installed."""
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return ""
    return next((found["bounds"].strip() for line in requirements if (found := _OF_TORCH.match(line))), "")


def _fix(wanted: str) -> str:
    return f"Run: {install_command([f'torch{wanted}'], again=True)}"
