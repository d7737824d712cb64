"""SNOO (arXiv 2510.15830): DiLoCo's outer step on a single machine."""

from __future__ import annotations

from peer.methods.diloco import CONSTANTS
from peer.methods.entry import MethodEntry, Preset
from peer.methods.method import Method
from peer.methods.topology import SOLO

ENTRY = MethodEntry(
    presets=(
        Preset(
            name="snoo",
            method=Method(topology=SOLO.name, codec="fp32", **CONSTANTS),
            purpose="one machine alone: Nesterov's outer step on its own work",
            since=3,
        ),
    ),
)
