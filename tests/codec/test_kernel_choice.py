"""PEER_KERNELS selects the kernels of a process before they are loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes


@pytest.mark.processes
@pytest.mark.parametrize(("wish", "says"), [("torch", "torch"), ("sse9", "UsageError")])
def test_the_choice_can_be_made_from_outside(wish: str, says: str) -> None:
    code = "from peer.codec.kernels import IMPLEMENTATION, REASON; print(IMPLEMENTATION, REASON)"
    done = subprocess.run([sys.executable, "-c", code], env={"PEER_KERNELS": wish}, capture_output=True, text=True)
    assert says in (done.stdout or done.stderr)
