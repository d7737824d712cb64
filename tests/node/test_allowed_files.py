from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

ASKED = """
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
from peer.node.process import FILES, raise_file_limit
raise_file_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(FILES, hard) if hard != -1 else FILES, hard)
resource.setrlimit(resource.RLIMIT_NOFILE, (600, 600))
raise_file_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (600, 600)
"""


def test_a_daemon_takes_the_files_that_the_system_lets_it_have() -> None:
    subprocess.run([sys.executable, "-c", ASKED], check=True, timeout=180)
