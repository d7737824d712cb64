"""Detects how this program is installed, and builds the command lines that install more packages for the same
interpreter.

Reads only package metadata, so that a missing package is reported before torch is imported."""

from __future__ import annotations

import re
import shlex
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata, util
from pathlib import Path

from peer.errors import UsageError

DISTRIBUTION = "peer-swarm"
_EXTRA = re.compile(r"extra\s*==\s*[\"'](?P<extra>[^\"']+)[\"']")


def requirements_of(*extras: str) -> list[str]:
    """Return the requirements of these extras, such as `tokenizers>=0.22`: each once, in order.

    Empty if this program is not installed as a distribution."""
    return list(dict.fromkeys(wanted for extra in extras for wanted in _requirements(extra)))


def missing_from(*extras: str) -> list[str]:
    """Return the requirements of these extras that are not installed."""
    return [wanted for wanted in requirements_of(*extras) if not _is_installed(wanted)]


def install_command(requirements: Sequence[str], *, again: bool = False, alone: bool = False) -> str:
    """Return the shell command line that installs packages for this interpreter.

    again: reinstall packages that are installed, because they are broken or of a wrong version. alone: without their
    dependencies."""
    prefix, options = Path(sys.prefix), list[str]()
    if _was_made_by_uv(prefix):
        command = ["uv", "pip", "install", "--python", sys.executable]
    elif "pipx" in prefix.parts:
        command = ["pipx", "runpip", DISTRIBUTION, "install"]
    else:
        command = [sys.executable, "-m", "pip", "install"]
        if sys.prefix == sys.base_prefix:  # no virtual environment
            options = ["--user"] if _is_users() else []
            if (Path(sysconfig.get_path("stdlib")) / "EXTERNALLY-MANAGED").exists():
                options.append("--break-system-packages")
    if again:
        options.append("--reinstall" if command[0] == "uv" else "--force-reinstall")
    if alone:
        options.append("--no-deps")
    return shlex.join([*command, *options, *requirements])


def install_extras(*extras: str) -> str:
    """Return advice for installing the missing packages of these extras."""
    wanted = missing_from(*extras) or requirements_of(*extras)
    if not wanted:
        return f"Install the extras {', '.join(extras)}: peer help install extras"
    return f"Run: {install_command(wanted)}"


@contextmanager
def using_extra(extra: str) -> Iterator[None]:
    """Turn a failed import inside this block into a UsageError with advice how to install the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed", install_extras(extra)) from error


def remove_command() -> str:
    """Return the command line that removes this program itself."""
    prefix = Path(sys.prefix)
    if "pipx" in prefix.parts:
        return f"pipx uninstall {DISTRIBUTION}"
    if "uv" in prefix.parts and "tools" in prefix.parts:
        return f"uv tool uninstall {DISTRIBUTION}"
    if _was_made_by_uv(prefix):
        return shlex.join(["uv", "pip", "uninstall", "--python", sys.executable, DISTRIBUTION])
    return shlex.join([sys.executable, "-m", "pip", "uninstall", DISTRIBUTION])


def _requirements(extra: str) -> Iterator[str]:
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return
    for line in lines:
        requirement, _, marker = line.partition(";")
        if (found := _EXTRA.search(marker)) and found["extra"] == extra:
            yield requirement.strip()


def _is_installed(requirement: str) -> bool:
    name = re.split(r"[<>=!~ \[]", requirement, maxsplit=1)[0]
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _was_made_by_uv(prefix: Path) -> bool:
    """Return whether uv manages this environment: uv is named in its configuration, and the user has not installed pip
    there."""
    try:
        made = (prefix / "pyvenv.cfg").read_text(errors="replace")
    except OSError:
        return False
    return bool(re.search(r"^uv\s*=", made, re.MULTILINE)) and util.find_spec("pip") is None


def _is_users() -> bool:
    """Return whether this program is installed for this user only (`pip install --user`)."""
    return Path(__file__).is_relative_to(site.getusersitepackages())
