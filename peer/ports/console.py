"""Sentences for the person at the terminal."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]
