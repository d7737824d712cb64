"""The check that this operating system is one that peer runs on. It comes before imports that fail elsewhere."""

from __future__ import annotations

import sys

from peer.errors import SystemUnsupported

SUPPORTED = ("linux", "darwin")
"""Names as `sys.platform` has them."""
_NAMES = {"win32": "Windows", "cygwin": "Cygwin"}


def check_system() -> None:
    """Raise SystemUnsupported on a system that peer does not run on."""
    if sys.platform not in SUPPORTED:
        raise SystemUnsupported(f"peer does not run on {_NAMES.get(sys.platform, sys.platform)}")
