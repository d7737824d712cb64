"""Sends a page's account, the JSON data that it shows, to all browsers that show the page. The account is rendered once
per second for all of them, and only changed parts are sent.

An account has named parts, each a server-sent event. A browser that connects, or was slow, gets exactly the parts that
are newer than those it has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from peer.protocol.block_places import BlockPlaces
from peer.protocol.endpoints import block_of_host

PULSE_S = 1.0
"""Seconds between two renderings while someone views the page."""
IDLE_PULSE_S = 5.0
"""Seconds between two renderings without viewers. Rendering goes on because `account` also collects the page's loss
curve (`peer.web.volunteer`)."""
PING_S = 15.0
"""Longest time without data on a stream, so that both ends notice a dead connection."""
MOST_VIEWERS = 100

Account = Callable[[], Mapping[str, Any]]
"""Returns the current account: part name -> JSON-able value."""


class Viewer:
    """One browser that receives the stream."""

    def __init__(self) -> None:
        self.evicted = asyncio.Event()
        """Set when its place was given to a viewer of another address."""


class Broadcast:
    """Renders `account()` and distributes it to viewers, while `run` is awaited. `now`: monotonic seconds.

    The number of viewers is limited; places are shared among address blocks."""

    def __init__(self, account: Account, now: Callable[[], float], most_viewers: int = MOST_VIEWERS) -> None:
        self._account = account
        self._now = now
        self._viewers: BlockPlaces[Viewer] = BlockPlaces(most_viewers)
        self._frames: dict[str, tuple[int, bytes]] = {}
        """Part name -> version at which it changed, and its event."""
        self._joined: dict[int, bytes] = {}
        """Version -> all frames newer than it, so that viewers at the same version share one buffer."""
        self._whole = b""
        """The account as JSON; empty: outdated."""
        self._version = 0
        self._rendered_at: float | None = None
        self._news: asyncio.Future[None] | None = None
        self._closed = False
        self._broken = False

    @property
    def viewers(self) -> int:
        """Number of current viewers."""
        return len(self._viewers)

    async def run(self) -> None:
        """Render periodically until cancelled."""
        while True:
            self._render(PULSE_S if self.viewers else IDLE_PULSE_S)
            await asyncio.sleep(PULSE_S)

    def close(self) -> None:
        """Send the latest state to every viewer and end all streams."""
        self._render(0.0)
        self._closed = True
        self._wake()

    def enter(self, host: str) -> Viewer | None:
        """Give a viewer from this address a place until `leave`. Return None if there is none, or the page closes."""
        if self._closed:
            return None
        viewer = Viewer()
        placing = self._viewers.enter(viewer, block_of_host(host), host=host)
        if placing.evicted is not None:
            placing.evicted.evicted.set()
        return viewer if placing.admitted else None

    def leave(self, viewer: Viewer) -> None:
        """Free the place of a viewer."""
        self._viewers.leave(viewer)

    def snapshot(self) -> bytes:
        """Return the whole account as JSON, at most `PULSE_S` old. The result is shared by all requests."""
        self._render(PULSE_S)
        if not self._whole:
            parts = (
                json.dumps(name).encode() + b":" + frame.split(b"data: ", 1)[1].rstrip()
                for name, (_, frame) in self._frames.items()
            )
            self._whole = b"{" + b",".join(parts) + b"}"
        return self._whole

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield server-sent events for one viewer until `close`: first all parts, then those that change."""
        seen = 0
        self._render(PULSE_S)
        while True:
            if self._version > seen:
                newer, seen = self._since(seen), self._version
                yield newer
                continue  # the viewer may have been slow: check for newer parts
            if self._closed:
                return
            self._news = self._news or asyncio.get_running_loop().create_future()
            done, _ = await asyncio.wait({self._news}, timeout=PING_S)
            if not done:
                yield b": alive\n\n"

    def _since(self, seen: int) -> bytes:
        if seen not in self._joined:
            self._joined[seen] = b"".join(frame for version, frame in self._frames.values() if version > seen)
        return self._joined[seen]

    def _render(self, older_than_s: float) -> None:
        now = self._now()
        if self._closed or self._broken or (self._rendered_at is not None and now - self._rendered_at < older_than_s):
            return
        self._rendered_at = now
        self._broken = True  # stays set if `_account` raises, so that the defect is reported only once
        fresh = {name: _frame(name, value) for name, value in self._account().items()}
        self._broken = False
        changed = {name: frame for name, frame in fresh.items() if self._frames.get(name, (0, b""))[1] != frame}
        if changed:
            self._version += 1
            self._frames |= {name: (self._version, frame) for name, frame in changed.items()}
            self._joined.clear()
            self._whole = b""
            self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
        self._news = None


def _frame(name: str, value: Any) -> bytes:
    """Encode a part as a server-sent event. ASCII JSON contains no line breaks, which would end the event."""
    return f"event: {name}\ndata: {json.dumps(value, separators=(',', ':'), allow_nan=False)}\n\n".encode("ascii")
