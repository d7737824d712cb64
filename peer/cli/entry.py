"""The first lines of the program: what has to happen before anything else is loaded."""

from __future__ import annotations

import sys

from peer.python_child import leave_working_folder

TYPE_CHECKING = False  # typing is not loaded before `main` has left the working folder
if TYPE_CHECKING:
    from collections.abc import Sequence

DAEMONS = frozenset({"join", "bootstrap"})


def main() -> None:
    """Run the command line, as `peer.cli.main.main`."""
    leave_working_folder()
    from peer.early_signals import EARLY_SIGNALS, INTERRUPTED_EXIT

    try:
        if command_of(sys.argv[1:]) in DAEMONS:
            EARLY_SIGNALS.install_handlers()
        from peer.observe.output import prepare_streams

        prepare_streams()
        from peer.cli.main import main as run
    except KeyboardInterrupt:  # `run` takes it from there on
        sys.exit(INTERRUPTED_EXIT)
    run()


def command_of(arguments: Sequence[str]) -> str:
    """Return the name of the command, which follows the options of the program. Empty: there is none."""
    rest = iter(arguments)
    for argument in rest:
        if argument == "--config":
            next(rest, "")
        elif not argument.startswith("-"):
            return argument
    return ""
