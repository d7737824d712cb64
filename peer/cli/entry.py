"""The program's first lines: preparations that have to precede the import of other modules."""

from __future__ import annotations

import sys

from peer.python_child import leave_working_folder

TYPE_CHECKING = False  # not imported from typing: `main` has to leave the working folder first
if TYPE_CHECKING:
    from collections.abc import Sequence

DAEMONS = frozenset({"join", "bootstrap"})


def main() -> None:
    """Leave the working folder, catch early signals, prepare the standard streams, and run `peer.cli.main.main`."""
    leave_working_folder()
    from peer.early_signals import EARLY_SIGNALS, INTERRUPTED_EXIT

    try:
        if command_of(sys.argv[1:]) in DAEMONS:
            EARLY_SIGNALS.install_handlers()
        from peer.observe.output import prepare_streams

        prepare_streams()
        from peer.cli.main import main as run
    except KeyboardInterrupt:  # later interrupts are handled by `peer.cli.main.main`
        sys.exit(INTERRUPTED_EXIT)
    run()


def command_of(arguments: Sequence[str]) -> str:
    """Return the name of the command, which follows the program's own options. Empty: there is none."""
    rest = iter(arguments)
    for argument in rest:
        if argument == "--config":
            next(rest, "")
        elif not argument.startswith("-"):
            return argument
    return ""
