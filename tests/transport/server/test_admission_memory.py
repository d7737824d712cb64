"""Refused calls free their memory, although gRPC stores the exception with which a call was refused."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any, NoReturn

import grpc
import pytest

from peer.protocol.messages import PeerId
from peer.transport.server.admission import MAX_REQUEST, Admission
from peer.transport.wire.refusals import Context, refuse, served


class Noted(bytes):
    freed = 0

    def __del__(self) -> None:
        Noted.freed += 1


class Caller:
    """A call with a request that is too long."""

    refusal: grpc.aio.AbortError | None = None

    async def read(self) -> bytes:
        return Noted(b"x" * (MAX_REQUEST + 1))

    def set_trailing_metadata(self, metadata: Any) -> None: ...

    async def abort(self, *why: object) -> NoReturn:
        self.refusal = grpc.aio.AbortError()
        raise self.refusal


async def too_long(_: Any, context: Context) -> None:
    await Admission(lambda: 0.0).request(context, PeerId("p"))


async def while_another_is_handled(_: Any, context: Context) -> None:
    message = await context.read()
    try:
        raise ValueError(message)
    except ValueError:
        await refuse(context, "request", "no")


@pytest.mark.parametrize("method", [too_long, while_another_is_handled])
def test_neither_the_message_nor_the_call_outlives_its_refusal(method: Any) -> None:
    """Memory must be freed without the garbage collector: 224 callers would occupy hundreds of megabytes."""

    async def main() -> tuple[weakref.ref[Caller], BaseException | None]:
        caller: Any = Caller()
        serving = asyncio.ensure_future(served(method).stream_stream(None, caller))
        await asyncio.wait({serving})
        assert serving.exception() is caller.refusal
        return weakref.ref(caller), serving.exception()

    before = Noted.freed
    gc.disable()
    try:
        call, refusal = asyncio.run(main())
        assert isinstance(refusal, grpc.aio.AbortError)
        assert Noted.freed == before + 1
        assert call() is None
    finally:
        gc.enable()
