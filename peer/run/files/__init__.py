"""The files that a manifest names by their digest."""
