"""Renders Markdown for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markdown import Markdown

WIDEST_COLUMNS = 100
"""Longest line, because longer ones are hard to read."""


def rendered(markdown: str) -> str:
    """Return Markdown rendered for this terminal's width, with colours if the terminal supports them."""
    console = Console(width=min(Console().width, WIDEST_COLUMNS))
    with console.capture() as lines:
        console.print(Markdown(markdown, hyperlinks=False))
    return lines.get()
