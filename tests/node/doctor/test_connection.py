"""A missing network, or a missing route out of the local network, must be found without sending anything."""

from __future__ import annotations

import subprocess
import sys

import pytest

from peer.node.doctor.connection import all_on_this_machine

HERE, THERE = "/ip4/127.0.0.1/tcp/1/p2p/x", "/ip4/198.51.100.7/tcp/1/p2p/x"
UNSHARE = ("unshare", "--map-root-user", "--net")
FIND = "from peer.node.doctor.connection import connection; found = connection(); print(found.severity, found.measured)"


def can_unshare() -> bool:
    try:
        return subprocess.run([*UNSHARE, "ip", "link"], capture_output=True, timeout=90).returncode == 0
    except OSError:
        return False


@pytest.mark.processes
@pytest.mark.skipif(not can_unshare(), reason="no network namespace can be made here")
@pytest.mark.parametrize(
    ("commands", "told"),
    [
        ("", "error this machine has no network"),
        ("ip link set lo up", "error this machine has no network"),
        (
            "ip link set lo up; ip addr add 198.51.100.7/24 dev lo",
            "warning there is no route to the internet, only to the own network, from 198.51.100.7",
        ),
        (
            "ip link set lo up; ip addr add 198.51.100.7/24 dev lo; ip route add default dev lo src 198.51.100.7",
            "ok there is a route to the internet, from 198.51.100.7",
        ),
    ],
    ids=["nothing", "loopback", "lan", "route"],
)
def test_what_a_machine_can_reach(commands: str, told: str) -> None:
    line = f"{commands}\n{sys.executable} -c '{FIND}'"
    assert subprocess.check_output([*UNSHARE, "sh", "-ec", line], text=True, timeout=60).startswith(told)


def test_a_run_on_this_machine_needs_no_network() -> None:
    assert all_on_this_machine([HERE, "/ip6/::1/tcp/1/p2p/x", "/dns4/localhost/tcp/1/p2p/x"])
    assert not all_on_this_machine([HERE, THERE])
    assert not all_on_this_machine([])
