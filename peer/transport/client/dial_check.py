"""Checks whether a peer answers at an address with its key, for other peers that ask."""

from __future__ import annotations

import asyncio

import grpc

from peer.protocol.messages import PeerId
from peer.transport.client.channels import CHANNEL_OPTIONS, is_ready
from peer.transport.client.dialling import Dialler
from peer.transport.tls import channel_credentials


async def dial_check(peer: PeerId, endpoint: str, timeout_s: float) -> str:
    """Return why the peer does not answer at an endpoint with its key, for a person. An empty string means that it
    does. It keeps to no budget: see `checked_dial`."""
    host, _, port = endpoint.rpartition(":")
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
    except TimeoutError:
        return f"no answer within {timeout_s:.0f} s"
    except OSError as error:
        return "connection refused" if isinstance(error, ConnectionRefusedError) else str(error.strerror or error)
    credentials, pinned = channel_credentials(peer)
    async with grpc.aio.secure_channel(endpoint, credentials, options=[*CHANNEL_OPTIONS, pinned]) as channel:
        return "" if await is_ready(channel, timeout_s) else "somebody else answers there"


async def checked_dial(dialler: Dialler, peer: PeerId, endpoint: str, timeout_s: float) -> str:
    """As `dial_check`, for an address out of a record. Raises NotDialled when it may not be dialled now."""
    why = "no answer"

    async def connect(address: str) -> bool | None:
        nonlocal why
        why = await dial_check(peer, address, timeout_s)
        return None if why else True

    (near,) = dialler.near(peer, [endpoint])
    return "" if await dialler.dial(peer, near, connect) else why
