"""The trainer process: `python -m peer.trainer FD`, where FD is an inherited socket to the daemon. Started by
`peer.trainer.process` only."""

from __future__ import annotations

import signal
import socket
import sys

from peer.trainer.link import Link


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the whole group; the daemon decides
    link = Link(socket.socket(fileno=int(sys.argv[1])))
    opening = link.inbox.get()

    from peer.trainer.session import serve  # torch: only now that the daemon's end would be noticed

    serve(link, opening)


if __name__ == "__main__":
    main()
