"""Configuration that the daemon gives a trainer process at its start."""

from __future__ import annotations
