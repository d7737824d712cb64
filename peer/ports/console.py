"""Type of the callback that shows text at the terminal."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]
"""Show one sentence to the person at the terminal."""
