"""Tests that start processes are marked: `pytest -m processes --collect-only -q` lists them."""

from __future__ import annotations

import subprocess

import pytest


@pytest.mark.xfail(strict=True, raises=pytest.fail.Exception, reason="it has no marker")
def test_a_test_that_starts_a_process_without_the_marker_fails() -> None:
    subprocess.run(["true"], check=True)


@pytest.mark.processes
def test_with_the_marker_it_passes() -> None:
    subprocess.run(["true"], check=True)
