"""Calls to other peers."""
