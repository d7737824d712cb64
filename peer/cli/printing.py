"""What commands print and ask. Words of others may be in any of it, so all of it is made harmless for a terminal."""

from __future__ import annotations

import sys

import click

from peer.errors import UsageError
from peer.observe.formatting import harmless


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text on stdout, or on stderr if `err`. JSON stays JSON: `json.dumps` escapes all control characters but
    one itself.

    Raises OutputFailed when stdout cannot be written, as on a full disk."""
    click.echo(harmless(text.replace("\x7f", r"\u007f")), err=err, nl=nl)


def is_interactive() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, yes: bool) -> None:
    """Ask a question that only a person may agree to. `yes`: the option `--yes` was given, which agrees.

    Raises click.Abort for a no, and UsageError when nobody can be asked."""
    if yes:
        return
    if not is_interactive():
        found = f"nobody can be asked: {question} (input or errors are no terminal)"
        raise UsageError(found, "To agree, add --yes.")
    click.confirm(question, abort=True, err=True)
