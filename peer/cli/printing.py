"""Prints texts and asks questions for the commands. Texts may contain strings from other peers, so control characters
are always escaped."""

from __future__ import annotations

import sys

import click

from peer.errors import UsageError
from peer.observe.formatting import harmless


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text on stdout, or on stderr if `err`. JSON stays valid: the only control character that `json.dumps`
    leaves unescaped is DEL, which is escaped here.

    Raises OutputFailed when stdout cannot be written, as on a full disk."""
    click.echo(harmless(text.replace("\x7f", r"\u007f")), err=err, nl=nl)


def is_interactive() -> bool:
    """Return whether a person can answer a question: input and stderr are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, yes: bool) -> None:
    """Ask a yes-or-no question. `yes`: the option `--yes` was given, so the answer is yes without asking.

    Raises click.Abort for a no, and UsageError when there is no terminal to ask at."""
    if yes:
        return
    if not is_interactive():
        found = f"nobody can be asked: {question} (input or errors are no terminal)"
        raise UsageError(found, "To agree, add --yes.")
    click.confirm(question, abort=True, err=True)
