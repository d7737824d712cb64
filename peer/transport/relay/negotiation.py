"""Negotiation between the two ends of a circuit: whether to use a punched connection or the relay
(`peer.transport.relay.wire`)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from peer.aio.tasks import cancel_and_wait
from peer.errors import PartnerLost
from peer.transport.relay.pipe import Stream
from peer.transport.relay.punch import PUNCH_S
from peer.transport.relay.wire import AGREED, CARRY, DECLINED, NONCE_BYTES, PUNCH, PUNCHED, STEP_S, read_exactly

Check = Callable[[Stream], Awaitable[bool]]
"""Returns whether the expected peer answers on a new connection. Raises PartnerLost when nothing arrives."""
Punch = Callable[[Check], Awaitable[Stream]]
"""Opens a punched connection that passes the check. Raises PartnerLost."""
DECLINES = "the other end wants no punched connection"
OPENED_NOTHING = f"punching opened nothing within {PUNCH_S:.0f} s"


async def agree_as_caller(through: Stream, punch: Punch | None) -> tuple[Stream, str]:
    """Return the connection to use: a punched one, or `through` and the reason. `punch` None: do not try to punch.

    Raises PartnerLost when the relay or the target stops answering."""
    why = ""
    if punch is not None:
        direct, why = await _try_as_caller(through, punch)
        if direct is not None:
            through.abort()
            return direct, ""
    through.send(CARRY)
    return through, why


async def _try_as_caller(through: Stream, punch: Punch) -> tuple[Stream | None, str]:
    """Return a punched connection over which the target echoed the nonce; None and the reason if there is none in
    time."""
    nonce = secrets.token_bytes(NONCE_BYTES)

    async def echoes(opened: Stream) -> bool:
        opened.send(nonce)
        return await read_exactly(opened.reader, NONCE_BYTES, PUNCH_S) == nonce

    through.send(PUNCH + nonce)
    answer = await read_exactly(through.reader, 1, STEP_S)
    if answer == DECLINED:
        return None, DECLINES
    if answer != AGREED:
        raise PartnerLost("the target speaks another protocol")
    try:
        async with asyncio.timeout(PUNCH_S):
            opened = await punch(echoes)
    except (TimeoutError, PartnerLost):
        return None, OPENED_NOTHING
    opened.send(PUNCHED)
    return opened, ""


async def agree_as_target(through: Stream, punch: Punch | None) -> Stream:
    """Return the connection that the caller chose: a punched one, or `through`. `punch` None: decline to punch.

    Raises PartnerLost when the caller chooses neither in time."""
    wish = await read_exactly(through.reader, 1, STEP_S)
    if wish == PUNCH:
        nonce = await read_exactly(through.reader, NONCE_BYTES, STEP_S)
        through.send(DECLINED if punch is None else AGREED)
        if punch is not None and (direct := await _choice(through, punch, nonce)) is not None:
            through.abort()
            return direct
        if punch is None:
            await _carried(through)
    elif wish != CARRY:
        raise PartnerLost("the caller speaks another protocol")
    return through


async def _choice(through: Stream, punch: Punch, nonce: bytes) -> Stream | None:
    """Return the punched connection if the caller chose it; None if it chose the relay. Raises PartnerLost."""
    carrying = asyncio.create_task(_carried(through))
    punching = asyncio.create_task(_offered(punch, nonce))
    chosen = False
    try:
        async with asyncio.timeout(PUNCH_S + STEP_S):
            waiting: set[asyncio.Future[Any]] = {carrying, punching}
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if carrying in done and carrying.exception() is None:
                    return None
                if punching in done and punching.exception() is None:
                    chosen = True
                    return punching.result()
    except TimeoutError:
        pass
    finally:
        if not chosen:
            punching.add_done_callback(_drop)  # a faulty caller may choose both
        await cancel_and_wait(carrying)
        await cancel_and_wait(punching)
    raise PartnerLost("the caller chose neither the relay nor a punched connection")


def _drop(punching: asyncio.Task[Stream]) -> None:
    """Close a punched connection that is not used."""
    if not punching.cancelled() and punching.exception() is None:
        punching.result().abort()


async def _carried(through: Stream) -> None:
    """Wait until the caller chooses the relay. Raises PartnerLost when it sends anything else."""
    if await read_exactly(through.reader, 1, PUNCH_S + STEP_S) != CARRY:
        raise PartnerLost("the caller speaks another protocol")


async def _offered(punch: Punch, nonce: bytes) -> Stream:
    """Open a punched connection, echo the nonce, and wait until the caller chooses it. Raises PartnerLost."""

    async def knows(opened: Stream) -> bool:
        if await read_exactly(opened.reader, NONCE_BYTES, PUNCH_S) != nonce:
            return False
        opened.send(nonce)
        return True

    opened, chosen = await punch(knows), False
    try:
        chosen = await read_exactly(opened.reader, 1, PUNCH_S) == PUNCHED
        if not chosen:
            raise PartnerLost("the caller speaks another protocol")
        return opened
    finally:
        if not chosen:
            opened.abort()
