"""SNOO (arXiv 2510.15830): DiLoCo with one machine."""

from __future__ import annotations

from peer.methods.diloco import CONSTANTS
from peer.methods.entry import MethodEntry, Preset
from peer.methods.method import Method

ENTRY = MethodEntry(
    presets=(
        Preset(
            name="snoo",
            method=Method(topology="solo", codec="fp32", **CONSTANTS),
            purpose="one machine alone: Nesterov's outer step on its own work",
            since=3,
        ),
    ),
)
