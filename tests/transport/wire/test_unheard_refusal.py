"""Refusing a caller that does not read leaves no traceback in our log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import pytest

from peer.transport.wire.refusals import UnheardRefusal, refuse, served

MORE_THAN_A_WINDOW = bytes(2**23)


def test_a_refusal_that_cannot_be_sent_ends_the_call_quietly(caplog: pytest.LogCaptureFixture) -> None:
    unheard: list[UnheardRefusal] = []

    async def method(request: Any, context: Any) -> None:
        try:
            async with asyncio.timeout(0.05):
                await context.write(MORE_THAN_A_WINDOW)
        except TimeoutError:
            try:
                await refuse(context, "timeout", "the reply was not taken")
            except UnheardRefusal as error:
                unheard.append(error)
                raise

    async def scenario() -> None:
        server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", {"Take": served(method)})])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_stream("/test/Take")()
            async with asyncio.timeout(60):
                while not unheard:
                    await asyncio.sleep(0)
            call.cancel()
        await server.stop(None)

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records] == []
