"""Folders that other programs read a run's model from."""
