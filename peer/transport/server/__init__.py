"""Calls from other peers."""
