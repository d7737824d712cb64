"""The first lines of the program: what a daemon needs before anything else is loaded."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from peer.early_signals import EARLY_SIGNALS
from peer.observe.output import prepare_streams

DAEMONS = frozenset({"join", "bootstrap"})


def main() -> None:
    """Run the command line, as `peer.cli.main.main`."""
    if command_of(sys.argv[1:]) in DAEMONS:
        EARLY_SIGNALS.remember()
    prepare_streams()
    from peer.cli.main import main as run

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
