"""The trainer process: `python -m peer.trainer FD`, where FD is an inherited socket to the daemon. Started by
`peer.trainer.client` only."""

from __future__ import annotations

import gc
import signal
import socket
import sys

from peer.clock.phases import PhaseTimer
from peer.trainer.ipc import DaemonPipe


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the whole group; the daemon decides
    link = DaemonPipe(socket.socket(fileno=int(sys.argv[1])))
    laps = PhaseTimer()
    gc.disable()  # what an import makes stays: looking through it again and again is a fifth of the time
    from peer.trainer.worker import serve  # torch: only now that the daemon's end would be noticed

    gc.freeze()
    gc.enable()
    laps.end("torch import")
    serve(link, link.inbox.get(), laps)  # the daemon starts us early: it may still look for the run


if __name__ == "__main__":
    main()
