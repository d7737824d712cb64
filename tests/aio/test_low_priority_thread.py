"""The thread for bulk work has a lower priority than its process, whatever the niceness of the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from peer.aio.threads import BULK_NICE, LOWEST
from tests.support.refused_calls import command, needs_seccomp

pytestmark = pytest.mark.processes

PROGRAM = """
import os, threading
from peer.aio.threads import LowPriorityThread
os.nice({nice})
work = LowPriorityThread()
print(work.start(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())).result())
work.close()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority of their own")
@pytest.mark.parametrize(("nice", "expected"), [(0, BULK_NICE), (10, 10 + BULK_NICE), (LOWEST - 1, LOWEST)])
def test_it_is_lower_than_the_daemon(nice: int, expected: int) -> None:
    own = int(subprocess.check_output(["nice"], text=True, timeout=60))
    program = [sys.executable, "-c", PROGRAM.format(nice=nice)]
    found = subprocess.check_output(program, text=True, timeout=60)
    assert int(found) == min(own + expected, LOWEST)


REFUSED = """
import logging
from peer.aio.threads import LowPriorityThread
logging.basicConfig(format="%(message)s")
threads = LowPriorityThread(), LowPriorityThread()
print(sum(thread.start(lambda: 1).result() for thread in threads))
"""


@needs_seccomp
def test_a_refused_priority_is_said_once_and_the_work_is_done() -> None:
    ended = subprocess.run(
        command("setpriority", sys.executable, "-c", REFUSED), capture_output=True, text=True, timeout=180
    )
    assert (ended.returncode, ended.stdout) == (0, "2\n"), ended.stderr
    assert ended.stderr.count("the system refused a lower one") == 1
