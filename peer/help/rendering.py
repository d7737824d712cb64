"""Markdown as a terminal shows it."""

from __future__ import annotations

from rich.console import Console
from rich.markdown import Markdown

WIDEST_COLUMNS = 100
"""Longer lines are hard to read."""


def rendered(markdown: str) -> str:
    """Return a text of Markdown as lines for this terminal, with colours if it shows them."""
    console = Console(width=min(Console().width, WIDEST_COLUMNS))
    with console.capture() as lines:
        console.print(Markdown(markdown, hyperlinks=False))
    return lines.get()
