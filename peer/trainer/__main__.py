"""Trainer process: `python -m peer.trainer FD`, where FD is an inherited socket to the daemon.

Only `peer.trainer.subprocess` starts it."""

from __future__ import annotations

import gc
import signal
import socket
import sys

from peer.clock.phases import PhaseTimer
from peer.trainer.ipc import DaemonPipe


def main() -> None:
    # a terminal or log-out sends these signals to all processes
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the daemon ends us: it first needs us for its last checkpoint
    pipe = DaemonPipe(socket.socket(fileno=int(sys.argv[1])))
    phases = PhaseTimer()
    gc.disable()  # imports create objects that stay for ever, so collecting during them only costs time
    # imports torch; only now, because the pipe, which notices the daemon's end, has to exist before
    from peer.trainer.worker import serve

    gc.freeze()
    gc.enable()
    phases.end("torch import")
    serve(pipe, pipe.inbox.get(), phases)  # waits for the config: the daemon may still be looking for the run


if __name__ == "__main__":
    main()
