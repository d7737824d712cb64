"""The daemon cancels an evaluation: the trainer stops in the middle of it, although it reads no commands then."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

READER = """
import socket, sys
from peer.trainer.ipc import DaemonPipe
pipe = DaemonPipe(socket.socket(fileno=int(sys.argv[1])))
said = [pipe.inbox.get(timeout=60)["op"] for _ in range(2)]
print(*said, pipe.given_up, flush=True)
"""


def test_the_word_passes_the_commands_that_wait() -> None:
    ours, theirs = socket.socketpair()
    said = ({"op": "evaluate", "number": 3}, {"op": "give_up", "number": 3}, {"op": "save", "folder": "f"})
    with ours, theirs:
        ours.sendall(b"".join(json.dumps(message).encode() + b"\n" for message in said))
        read = subprocess.run(
            [sys.executable, "-c", READER, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            capture_output=True,
            text=True,
            timeout=90,
            check=True,
        )
    assert read.stdout.split() == ["evaluate", "save", "3"]
