"""A process of `benchmarks.front`: a daemon's end that is called through its front, or past it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from peer.lab.bench.daemon_process import DaemonEnd, main


class FrontEnd(DaemonEnd):
    """An end that takes calls at both places, and calls the other at the one that the command names."""

    async def open(self) -> dict[str, Any]:
        said = await super().open()
        front = self._transport._server._front
        assert front is not None
        return {**said, "inside": f"127.0.0.1:{front._port}"}

    def meet(self, other: dict[str, Any]) -> None:
        super().meet(other)
        self._gate = self._transport._service.gate
        self._callers = self._gate._callers
        self._where = {"front": (other["endpoint"],), "past": (other["inside"],)}

    async def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        """As a daemon's end does. Past the front, gRPC's own addresses count."""
        if (via := command.get("via")) is not None:
            self._gate._callers = self._callers if via == "front" else None
            self._partner = replace(self._partner, endpoints=self._where[via])
        return await super().obey(command)


if __name__ == "__main__":
    main(FrontEnd)
