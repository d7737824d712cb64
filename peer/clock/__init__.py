"""Clocks that no one sets, quiet hours, and a timer of phases."""
