"""Checks whether a peer answers with its key at an address, on behalf of other peers."""

from __future__ import annotations

import asyncio
import ssl

from peer.protocol.endpoints import host_of, port_of
from peer.protocol.messages import PeerId
from peer.transport.client.dialling import Dialler
from peer.transport.tls import ALPN, client_context


async def dial_check(peer: PeerId, endpoint: str, timeout_s: float) -> str:
    """Return why the peer does not answer with its key at an endpoint, for a person; empty: it does.

    Observes no budget of dials; see `checked_dial`."""
    context, name = client_context(peer)
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(
                host_of(endpoint), port_of(endpoint), ssl=context, server_hostname=name
            )
    except TimeoutError:
        return f"no answer within {timeout_s:.0f} s"
    except ConnectionRefusedError:
        return "connection refused"
    except ssl.SSLError:
        return "somebody else answers there"
    except OSError as error:
        return str(error.strerror or error)
    answers = writer.get_extra_info("ssl_object").selected_alpn_protocol() == ALPN
    writer.transport.abort()
    return "" if answers else "somebody else answers there"


async def checked_dial(dialler: Dialler, peer: PeerId, endpoint: str, timeout_s: float) -> str:
    """As `dial_check`, for an address from a directory record: within the budget of dials. Raises NotDialled when the
    address may not be dialled now."""
    why = "no answer"

    async def connect(address: str) -> bool | None:
        nonlocal why
        why = await dial_check(peer, address, timeout_s)
        return None if why else True

    (near,) = dialler.dialable(peer, [endpoint])
    return "" if await dialler.dial(peer, near, connect) else why
