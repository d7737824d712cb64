"""Clocks that nobody sets, and phases of a start."""
