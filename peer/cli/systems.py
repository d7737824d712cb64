"""Checks that peer supports this operating system, before imports that fail on others."""

from __future__ import annotations

import sys

from peer.errors import SystemUnsupported

SUPPORTED = ("linux", "darwin")
"""Supported values of `sys.platform`."""
_NAMES = {"win32": "Windows", "cygwin": "Cygwin"}


def check_system() -> None:
    """Raise SystemUnsupported on an operating system that peer does not support."""
    if sys.platform not in SUPPORTED:
        raise SystemUnsupported(f"peer does not run on {_NAMES.get(sys.platform, sys.platform)}")
