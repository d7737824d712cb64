"""The effect of `tune_malloc` on glibc's heap, measured in a process of its own."""

from __future__ import annotations

import platform
import re
import subprocess
import sys

import pytest

from peer.node.process import ARENAS, tune_malloc

pytestmark = pytest.mark.processes

PROGRAM = """
import ctypes, sys, threading
from peer.node.process import tune_malloc

print(tune_malloc(), flush=True)
started = threading.Barrier(9)
threads = [threading.Thread(target=started.wait) for _ in range(8)]
for thread in threads:
    thread.start()
libc = ctypes.CDLL(None)
if hasattr(libc, "malloc_info"):
    libc.fdopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.fdopen(1, b"w"))
    libc.malloc_info(0, stream)
    libc.fflush(stream)
started.wait()
for thread in threads:
    thread.join()
"""


def test_threads_share_few_heaps() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    if platform.system() == "Linux" and platform.libc_ver()[0] == "glibc":
        assert done.stdout.startswith("malloc keeps freed buffers")
        assert len(re.findall(r"<heap nr=", done.stdout)) == ARENAS
    else:
        assert done.stdout == tune_malloc() + "\n"
