"""What the parts of a group share: the peer's surroundings, a bell to wait for, and a table that forgets."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from peer.codec.plain import Codec
from peer.daemon.conduct import Conduct
from peer.daemon.exchange import Offload
from peer.daemon.interfaces import Clock, GroupTransport
from peer.net.seal import Seal
from peer.protocol.messages import PeerId, PeerRecord, RoundKey, RunId, Status

T = TypeVar("T")

KEEP_ROUNDS = 2
"""So many rounds that are over are remembered, their results included."""


class Seen(Protocol):
    """The part of `peer.daemon.view.View` that a group needs."""

    @property
    def peers(self) -> Mapping[PeerId, PeerRecord]: ...

    @property
    def banned(self) -> Callable[[PeerId], bool]: ...

    def dialable(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class GroupAround:
    """`elements`: of each fragment. `codec`: of contributions."""

    run_id: RunId
    me: PeerId
    seal: Seal
    transport: GroupTransport
    clock: Clock
    view: Seen
    conduct: Conduct
    offload: Offload
    codec: Codec
    result_codec: Codec
    elements: tuple[int, ...]
    max_group: int
    max_upload: float | None = None
    """Bytes per second; None: no cap."""

    def live(self, even_finished: bool = False) -> set[PeerId]:
        """The training peers we see and would work with, ourselves included; and those that did all their rounds."""
        fit = {Status.TRAINING, Status.FINISHED} if even_finished else {Status.TRAINING}
        training = [p for p, record in self.view.peers.items() if record.status in fit]
        return {self.me, *self.conduct.acceptable([p for p in training if not self.view.banned(p)])}

    def why_not(self, peer: PeerId) -> str:
        """Why nothing is done for this peer, for a person; empty: it is welcome."""
        if why := self.conduct.why_out(peer):
            return f"standing: {why}"
        return "banned by the operator" if self.view.banned(peer) else ""


class Bell:
    """Wakes everybody who waits for something to change; they look again for themselves."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Until it rings, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(timeout_s, 0.001)):
                await self._event.wait()


def forget(table: OrderedDict[RoundKey, T], over: Callable[[T], bool]) -> None:
    """Keep the rounds that are open, and the last KEEP_ROUNDS that are over."""
    past = [key for key, value in table.items() if over(value)]
    for key in past[:-KEEP_ROUNDS]:
        del table[key]
