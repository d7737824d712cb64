"""Keeps a DHT node running and joined, whatever dies: p2pd itself, the bootstrap nodes, or everybody else."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
from collections.abc import Awaitable, Callable, Sequence

from peer.errors import AddressError, DirectoryFailed
from peer.net.directory.address import advertised, claimed
from peer.net.directory.cache import AddressCache
from peer.net.directory.p2pd import LOST, Node, NodeOptions
from peer.net.directory.validator import RecordGate

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Pace:
    """How often and how long, all in seconds."""

    heal: float = 10.0
    """Between two rounds of healing, give or take a third."""
    alone: float = 1.0
    """The same while nobody is in the routing table."""
    dial: float = 5.0
    """A dial of one address, at most. (libp2p itself does not dial again for 5 s what it could not reach.)"""
    first_join: float = 5.0
    """How long `start` waits for the first round of dialling."""
    rebuild: float = 0.5
    """Before a dead p2pd is started again; doubles with each failure up to `rebuild_max`."""
    rebuild_max: float = 30.0


class Helper:
    """One p2pd at a time, watched and rebuilt, with a loop that joins and heals.

    hivemind never contacts a bootstrap node again once it has lost it, and p2pd refuses to start when none answers. So
    neither is told about bootstraps: this loop dials every known address that is not in the routing table, forever."""

    def __init__(
        self,
        options: NodeOptions,
        gate: RecordGate,
        bootstraps: Sequence[str],
        cache: AddressCache,
        now: Callable[[], float],
        on_joined: Callable[[Node], Awaitable[None]],
        pace: Pace,
    ) -> None:
        self._options, self._gate, self._bootstraps, self._cache = options, gate, tuple(bootstraps), cache
        self._now, self._on_joined, self._pace = now, on_joined, pace
        self._listen: list[str] = []
        self._keeper: asyncio.Task[None] | None = None
        self._first_round = asyncio.Event()
        self.node: Node | None = None
        """None while p2pd is dead."""
        self.addresses: list[str] = []
        self.trouble = ""
        """Why there is no node or nobody in it, for a person to read. Empty: all is well."""

    async def start(self, listen: Sequence[str]) -> None:
        """Start p2pd, and give the first round of dialling `first_join` seconds. Raises AddressError, DirectoryFailed;
        that nobody answers is no error."""
        with claimed(listen) as ready:
            self.node = await Node.start(self._options, ready, self._gate)
        self._listen = ready
        try:
            await self._learn_addresses(self.node)
        except LOST as error:
            await self.node.close()
            raise DirectoryFailed(f"the DHT helper (p2pd) does not answer ({error!r})", "Try again.") from error
        except asyncio.CancelledError:
            await self.node.close()
            raise
        self._keeper = asyncio.create_task(self._keep(self.node), name="directory keeper")
        if self._bootstraps or self._cache.addresses():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace.first_join):
                    await self._first_round.wait()

    async def close(self) -> None:
        """End everything; within a few seconds. Never raises."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        if self.node is not None:
            node, self.node = self.node, None
            await node.close()
        self._cache.save(force=True)

    async def _keep(self, node: Node) -> None:
        """Heal until p2pd is gone, rebuild it, and again."""
        while True:
            self.trouble = await self._heal_until_dead(node)
            log.warning("%s; starting it again", self.trouble)
            self.node = None
            await node.close()
            node = await self._rebuild()

    async def _heal_until_dead(self, node: Node) -> str:
        """Returns the cause of death in words."""
        death = asyncio.create_task(node.died())
        healing = asyncio.create_task(self._heal(node))
        try:
            await asyncio.wait({death, healing}, return_when=asyncio.FIRST_COMPLETED)
            if death.done():
                return f"the DHT helper (p2pd) ended with {_code_in_words(death.result())}"
            error = healing.exception()
            if not isinstance(error, LOST):
                log.error("the directory's healing loop failed", exc_info=error)
            return f"the DHT helper (p2pd) does not answer ({error!r})"
        finally:
            death.cancel()
            healing.cancel()
            await asyncio.gather(death, healing, return_exceptions=True)

    async def _rebuild(self) -> Node:
        """Same identity, same port: to the others it is the node they knew. Tries until it succeeds."""
        wait = self._pace.rebuild
        while True:
            await asyncio.sleep(wait)
            try:
                with claimed(self._listen) as ready:
                    self.node = await Node.start(self._options, ready, self._gate)
                return self.node
            except (AddressError, DirectoryFailed) as error:
                self.trouble = f"{error.found}; trying again"
                log.warning("%s", self.trouble)
                wait = min(2 * wait, self._pace.rebuild_max)

    async def _heal(self, node: Node) -> None:
        """Rounds of dialling, forever. Raises one of LOST when p2pd no longer answers."""
        alone = True
        while True:
            await asyncio.gather(*(node.link(address, self._pace.dial) for address in self._to_dial(node)))
            with contextlib.suppress(*LOST):
                await node.refresh()
            await self._learn_addresses(node)
            was_alone, alone = alone, not node.neighbours()
            self.trouble = "nobody else answers in the DHT" if alone else ""
            if was_alone and not alone:
                await self._on_joined(node)
            self._first_round.set()
            await asyncio.sleep(self._pace.alone if alone else self._pace.heal * _jitter())

    def _to_dial(self, node: Node) -> list[str]:
        """All bootstraps we miss. Of the cached addresses: all while we are alone, else one, for two parts of a swarm
        that lost each other join again when any two of their members meet."""
        known = node.neighbours() | {_peer(address) for address in self.addresses}
        bootstraps = [address for address in self._bootstraps if _peer(address) not in known]
        cached = [address for address in self._cache.addresses() if _peer(address) not in known]
        if node.neighbours() and cached:
            cached = random.sample(cached, 1)
        return list(dict.fromkeys(bootstraps + cached))

    async def _learn_addresses(self, node: Node) -> None:
        """Ours may change with the network; those of the others go to the cache."""
        visible = await node.addresses()
        self.addresses = visible if self._options.announce_maddrs else advertised(visible, self._listen)
        self._cache.saw(await node.seen_addresses(), self._now())
        self._cache.save()


def _peer(address: str) -> str:
    return address.rpartition("/p2p/")[2]


def _jitter() -> float:
    return random.uniform(2 / 3, 4 / 3)


def _code_in_words(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
