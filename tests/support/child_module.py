"""Provides a module for a child process to run in place of one of `peer`'s."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def child_module(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> str:
    """Write a module that children of this process find, and return its name."""
    places = folder / "modules"
    places.mkdir(exist_ok=True)
    (places / "child_of_a_test.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", os.fspath(places))
    return "child_of_a_test"
