"""What is refused is not kept."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn, cast

import pytest

from peer.net.gate import MAX_REQUEST, Context, Gate
from peer.protocol.messages import PeerId


class Aborted(Exception):
    pass


class Noted(bytes):
    freed = 0

    def __del__(self) -> None:
        Noted.freed += 1


class Caller:
    """One that sends a request too long to be one."""

    async def read(self) -> bytes:
        return Noted(b"x" * (MAX_REQUEST + 1))

    def set_trailing_metadata(self, metadata: Any) -> None: ...

    async def abort(self, *why: object) -> NoReturn:
        raise Aborted


def test_a_refusal_that_lives_on_does_not_keep_the_message_it_refused() -> None:
    """Its traceback holds the frames, and they the message: of 64 callers that is tens of megabytes."""
    refusals = list[Aborted]()

    async def main() -> None:
        gate = Gate(lambda: 0.0)
        try:
            await gate.request(cast(Context, Caller()), PeerId("p"))
        except Aborted as refusal:
            refusals.append(refusal)

    before = Noted.freed
    asyncio.run(main())
    with pytest.raises(Aborted):
        raise refusals[0]
    assert Noted.freed == before + 1
