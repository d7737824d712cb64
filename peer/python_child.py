"""Starts every child process that runs Python, and keeps code in the working folder out of all our processes.

`python -m` and `python -c` put the working folder first on the module search path, and an empty or relative entry of
PYTHONPATH means a folder below it. A file such as `random.py` there would be imported, and therefore run, in place of
Python's own module. In the same way an empty or relative entry of PATH lets the working folder provide `git` or
`systemctl`.

The program calls `leave_working_folder` first. Children are started by `start_python`, `popen_python` or `run_python`.
The top of this module imports only built-in modules, because any other import would search the working folder."""

# ruff: noqa: PTH100, PTH109, PTH117, PTH118, PTH120 - pathlib is not loaded yet

from __future__ import annotations

import importlib.util
import os
import site
import sys

TYPE_CHECKING = False  # mypy knows the name; typing itself may be shadowed
if TYPE_CHECKING:
    import asyncio
    import subprocess
    from collections.abc import Mapping, Sequence
    from typing import Any

SEARCH_VARIABLES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH")
"""Environment variables that list folders of programs, modules or shared libraries. An empty entry means the working
folder."""


def leave_working_folder() -> None:
    """Remove the working folder from this process's module search path and from the search paths in its environment.

    This comes too late for modules that Python has imported before: those of `python -m` itself, and a
    `sitecustomize.py`. Only `python -P`, or starting the program by its script `peer`, protects these too."""
    unwanted = _relative_entries()
    if not sys.flags.safe_path and sys.path and sys.path[0] == _working_folder():
        del sys.path[0]  # `python -m`
    sys.path[:] = [entry for entry in sys.path if entry and entry not in unwanted]
    safe = _safe(os.environ)
    for name in SEARCH_VARIABLES:
        if name not in safe:
            os.environ.pop(name, None)
    os.environ.update(safe)


async def start_python(
    module: str,
    *arguments: str,
    prefix: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    **how: Any,
) -> asyncio.subprocess.Process:
    """Start `python -m module` in the running event loop. Raises OSError if it cannot be started.

    env: the child's environment, by default this process's; `python_environment` makes it safe. prefix: a program with
    arguments that runs the command after it. how: further arguments of `asyncio.create_subprocess_exec`."""
    import asyncio

    command = (*prefix, *python_command(module, *arguments))
    return await asyncio.create_subprocess_exec(*command, env=python_environment(module, env), **how)


def popen_python(
    module: str,
    *arguments: str,
    prefix: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    **how: Any,
) -> subprocess.Popen[Any]:
    """Start `python -m module`, as `start_python` does. `how`: further arguments of `subprocess.Popen`."""
    import subprocess

    command = [*prefix, *python_command(module, *arguments)]
    return subprocess.Popen(command, env=python_environment(module, env), **how)  # noqa: S603 - our own modules


def run_python(
    module: str,
    *arguments: str,
    prefix: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    **how: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run `python -m module` to its end, as `start_python` does. `how`: further arguments of `subprocess.run`."""
    import subprocess

    command = [*prefix, *python_command(module, *arguments)]
    return subprocess.run(command, env=python_environment(module, env), **how)  # noqa: S603 - `check` is in `how`


def python_command(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Return the command line of `python -m module`. Safe together with an environment of `python_environment`."""
    return [python, "-P", "-m", module, *arguments]


def isolated_python(program: str, *arguments: str) -> list[str]:
    """Return the command line that runs the source text `program` with only Python's standard library.

    Site-packages, the working folder and Python's environment variables are ignored."""
    return [sys.executable, "-I", "-S", "-c", program, *arguments]


def python_environment(module: str, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which a child finds `module` and the packages that this process finds.

    It is `env`, or this process's environment, without the working folder. Processes that the child starts, such as the
    helpers of multiprocessing, inherit it. If the package is in no site-packages, as in a checkout, its folder is added
    to PYTHONPATH. The site-packages themselves are not added, because PYTHONPATH comes before the standard library,
    which their packages could then shadow."""
    found = _safe(os.environ if env is None else env)
    entries = [] if sys.flags.ignore_environment else [found.get("PYTHONPATH", "")]
    entries = list(filter(None, [_checkout_of(module), *entries]))
    found.pop("PYTHONPATH", None)
    return found | ({"PYTHONPATH": os.pathsep.join(entries)} if entries else {})


def without_options(*kept: str) -> dict[str, str]:
    """Return our environment without the variables that set options of a `peer` command, except those in `kept`.

    For a child that runs a `peer` command and takes its options only from its arguments. Otherwise PEER_DATA or a
    configuration file meant for this command would apply to the child too."""
    kept = ("PEER_KERNELS", *kept)
    found = {name: value for name, value in os.environ.items() if not name.startswith("PEER_") or name in kept}
    return found | {"PEER_CONFIG": os.devnull}


def _safe(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment whose search paths contain only absolute folders. A search path without any is removed."""
    safe = dict(env, PYTHONSAFEPATH="1")
    for name in SEARCH_VARIABLES:
        absolute = [entry for entry in safe.pop(name, "").split(os.pathsep) if os.path.isabs(entry)]
        if absolute:
            safe[name] = os.pathsep.join(absolute)
    if sys.flags.no_user_site or not os.path.isabs(site.getuserbase()):  # relative if HOME is, or without a HOME
        safe["PYTHONNOUSERSITE"] = "1"
    return safe


def _checkout_of(module: str) -> str:
    """Return the folder that contains the module's package. Empty: children find it anyway, in site-packages."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None or not (places := list(spec.submodule_search_locations or [])):
        return ""
    folder = os.path.dirname(os.path.abspath(places[0]))
    return "" if folder in (*site.getsitepackages(), site.getusersitepackages()) else folder


def _relative_entries() -> set[str]:
    """Return the empty and relative entries of PYTHONPATH, as written and as `site` has put them on sys.path."""
    given = os.environ.get("PYTHONPATH", "")
    if not given or sys.flags.ignore_environment:
        return set()
    entries, here = given.split(os.pathsep), _working_folder()
    relative = {entry for entry in entries if not os.path.isabs(entry)}
    found = relative | {os.path.normpath(os.path.join(here, entry)) for entry in relative if here}
    return found - {os.path.normpath(entry) for entry in entries if os.path.isabs(entry)}


def _working_folder() -> str:
    """Return the path of the working folder. Empty: it was deleted, so nothing can be imported from it."""
    try:
        return os.getcwd()
    except OSError:
        return ""
