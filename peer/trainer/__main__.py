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
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # a terminal or log-out sends them to all processes
        signal.signal(number, signal.SIG_IGN)  # the daemon decides: it still needs us for its last checkpoint
    pipe = DaemonPipe(socket.socket(fileno=int(sys.argv[1])))
    phases = PhaseTimer()
    gc.disable()  # objects that an import makes stay for ever, so there is no use in looking for garbage among them
    from peer.trainer.worker import serve  # torch is imported only now, when the daemon's end would be noticed

    gc.freeze()
    gc.enable()
    phases.end("torch import")
    serve(pipe, pipe.inbox.get(), phases)  # the daemon starts us early and may still look for the run


if __name__ == "__main__":
    main()
