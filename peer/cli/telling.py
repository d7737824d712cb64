"""What commands print. Words of others may be in any of it, so all of it is made harmless for a terminal."""

from __future__ import annotations

import click

from peer.observe.formatting import harmless


def tell(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text on stdout, or on stderr if `err`. JSON stays JSON: `json.dumps` escapes all control characters but
    one itself.

    Raises OutputFailed when stdout cannot be written, as on a full disk."""
    click.echo(harmless(text.replace("\x7f", r"\u007f")), err=err, nl=nl)
