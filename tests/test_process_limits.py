"""Limits of a process on systems that forbid to set or even read them."""

from __future__ import annotations

import math
import resource
import subprocess
import sys

import pytest

from peer.discovery.dht_node.launch import launched
from peer.process_limits import open_file_limits
from tests.support.refused_calls import RESOURCES, command, needs_seccomp

ASK = """
from peer.discovery.dht_node.launch import files_granted
from peer.node.process import raise_file_limit
from peer.process_limits import open_file_limits
raise_file_limit()
print(*open_file_limits(), files_granted(8192))
"""


def test_limits_are_the_systems() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert open_file_limits() == tuple(math.inf if one == resource.RLIM_INFINITY else one for one in limits)


@pytest.mark.processes
@needs_seccomp
def test_a_daemon_starts_where_limits_are_refused() -> None:
    assert subprocess.check_output(command(RESOURCES, sys.executable, "-c", ASK), text=True) == "inf inf 8192\n"


@pytest.mark.processes
@needs_seccomp
def test_p2pd_starts_where_limits_are_refused() -> None:
    program = launched(["/bin/echo", "started"], files=256, heap=2**28, data=2**30)
    assert subprocess.check_output(command(RESOURCES, *program), text=True) == "started\n"
