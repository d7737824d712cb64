"""Serving of other peers' calls."""
