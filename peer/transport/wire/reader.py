"""Reads the raw messages of a served call."""

from __future__ import annotations

from peer.transport.wire.refusals import Context
from peer.transport.wire.striping import Read


def message_reader(context: Context) -> Read:
    """Return a function that reads the next message, or returns None at the end of the stream."""

    async def read() -> bytes | None:
        message = await context.read()
        return message if isinstance(message, bytes) else None

    return read
