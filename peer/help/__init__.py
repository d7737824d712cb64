"""The documentation for a terminal: `pages` finds a page of `docs/`, `rendering` formats its Markdown."""
