"""Asyncio helpers that know nothing of this project."""
