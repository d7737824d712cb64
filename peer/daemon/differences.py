"""A pair's params at a few bits: what `peer.codec.modulo` sends first, the blocks that have to be asked for, and the
answers. Three swaps of one round: payloads, requests (a bit a block, all zero as a rule), answers if there are any.

What happens on failure: whatever is lost or wrong on the way, nothing of it is used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from peer.codec.blocks import BLOCK
from peer.codec.distance import Distance
from peer.codec.modulo import Modulo, ask, asked
from peer.daemon.owned import whole

Offload = Callable[[Callable[[], Any]], Awaitable[Any]]


class Send(Protocol):
    """One swap: our payload of a part of the round for the partner's, of so many bytes."""

    def __call__(self, part: int, payload: bytes, nbytes: int, /) -> Awaitable[bytearray]: ...


class Differences:
    """Remembers, for each fragment, how far partners were."""

    def __init__(self, bits: int, offload: Offload) -> None:
        self.codec = Modulo(bits)
        self._offload = offload
        self._distances: dict[int, Distance] = {}

    async def exchange(self, send: Send, fragment: int, own: Tensor, outer: Tensor, into: Tensor) -> None:
        """The partner's params as it rounded them, flat fp32, come into `into`. `own` and `outer`: our params and
        outer_params of the fragment, which stay as they are meanwhile. Raises BadPayload, and what `send` raises. A
        cancelled call ends when no thread writes to `into` any more."""
        codec, offload = self.codec, self._offload
        distance = self._distances.setdefault(fragment, Distance())
        spread: Tensor = await offload(partial(distance.spread, own, outer))
        payload: bytes = await offload(partial(codec.encode, own, spread))
        theirs = await send(0, payload, len(payload))
        failed: Tensor = await whole(offload(partial(codec.decode_into, theirs, own, into)))
        request = ask(failed)
        wanted = asked(await send(1, request, len(request)), own.numel())
        if bool(torch.any(failed | wanted)):
            answer: bytes = await offload(partial(codec.encode_blocks, own, payload, wanted))
            answered = await send(2, answer, BLOCK * int(failed.sum()))
            await whole(offload(partial(codec.decode_blocks_, into, theirs, failed, answered)))
        await offload(partial(distance.learn, own, into, outer))
