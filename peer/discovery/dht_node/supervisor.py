"""Keeps a DHT node running and joined when p2pd, the bootstrap nodes or all other peers die."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import statistics
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field

from peer.aio.events import Signal
from peer.aio.tasks import uninterrupted
from peer.discovery.address_cache import AddressCache
from peer.discovery.dht_node.health import Health, Watcher
from peer.discovery.dht_node.launch import files_granted
from peer.discovery.dht_node.node import LOST, DhtNode, DhtNodeOptions
from peer.discovery.dht_node.redial import Redial
from peer.discovery.multiaddr import advertised, claimed
from peer.discovery.validator import RecordGate
from peer.errors import AddressError, DirectoryFailed
from peer.observe.formatting import amount
from peer.ports.directory import DialReport

ENOUGH = 8
"""With this many neighbours, the node does not react to single ones that come or go."""
SLOWER = 5
"""Factor by which the pause between searches grows while nothing changes. A search asks twenty nodes, and dials most of
them."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RebuildTimes:
    """Pauses before a dead p2pd is started again, in seconds."""

    first: float = 0.25
    """Pause before the first restart; each further death in a row doubles it."""
    most: float = 30.0
    """Longest pause."""
    peace: float = 60.0
    """A p2pd that lives this long ends the row of deaths."""


@dataclass(frozen=True, slots=True)
class SupervisorTimes:
    """Periods and time limits of the supervisor, in seconds."""

    heal: float = 4.0
    """Mean pause between two rounds of healing; each pause varies by up to a third.

    With `dial` it bounds the time in which a bootstrap node that has come back is dialled: 10 s."""
    refresh: float = 3600.0
    """Longest pause between two searches for nodes near us. The pause starts at `heal`, and is multiplied by `SLOWER`
    while no node comes or goes or `ENOUGH` are known. New nodes dial us anyway, and looks notice nodes that are
    gone."""
    trim: float = 60.0
    """Pause between two times at which idle connections are closed, for nodes that rarely call others."""
    alone: float = 1.0
    """Pause between two rounds of healing while no other node is known."""
    dial: float = 5.0
    """Longest dial of one address."""
    first_join: float = 5.0
    """Longest time for which `start` waits for the first round of dialling."""
    rebuild: RebuildTimes = field(default_factory=RebuildTimes)
    pulse: float = 2.0
    """Pause between two checks whether p2pd answers."""
    answer: float = 3.0
    """Timeout of such a check. A p2pd that misses two in a row is replaced."""


class DhtNodeSupervisor:
    """Runs one p2pd at a time: watches it, rebuilds it when it dies, and keeps it joined to the swarm.

    hivemind never contacts a lost bootstrap node again, and p2pd refuses to start if none answers. Neither of them
    therefore gets the bootstrap nodes. Instead the supervisor repeatedly dials every known address that is not in the
    routing table."""

    def __init__(
        self,
        options: DhtNodeOptions,
        gate: RecordGate,
        bootstraps: Sequence[str],
        cache: AddressCache,
        now: Callable[[], float],
        on_joined: Callable[[DhtNode], Awaitable[None]],
        times: SupervisorTimes,
        watcher: Watcher,
        recorded: Callable[[], Container[str]],
    ) -> None:
        """`on_joined`: called with the node when it has joined the swarm, to publish our record. `recorded`: returns
        the peers of the run that have a valid record now."""
        self._recorded = recorded
        self._options, self._gate, self._bootstraps, self._cache = options, gate, tuple(bootstraps), cache
        self._now, self._on_joined, self._times = now, on_joined, times
        self._asked: tuple[str, ...] = ()
        self._listen: list[str] = []
        self._keeper: asyncio.Task[None] | None = None
        self._first_round = Signal()
        self._joined = False
        self._redial = Redial(times.heal)
        self.node: DhtNode | None = None
        """The running node; None while p2pd is dead."""
        self.addresses: list[str] = []
        self.health = Health()
        self._watcher = watcher
        self.lost_at: float | None = None
        """Time (`now`) since which no lookup is possible: p2pd died and has not joined again. None: lookups are
        possible."""

    async def start(self, listen: Sequence[str]) -> None:
        """Start p2pd, and wait up to `first_join` seconds for the first round of dialling.

        Raises AddressError or DirectoryFailed. It is no error if no other node answers."""
        self._asked = tuple(listen)
        self._listen = [self._cache.listened.get(address, address) for address in listen]
        self.node = await self._launch()
        try:
            await self._learn_addresses(self.node)
        except LOST as error:
            await self.node.close()
            raise DirectoryFailed(f"the DHT helper (p2pd) does not answer ({error!r})", "Try again.") from error
        except asyncio.CancelledError:
            await self.node.close()
            raise
        self._keeper = asyncio.create_task(self._keep_running(self.node), name="directory keeper")
        if self._bootstraps or self._cache.addresses():
            await self._first_round.wait_for(self._times.first_join)

    def contact(self) -> DialReport:
        """Report how the given bootstrap addresses answer, and the median clock offset of the nodes there."""
        tried = self.node.tried if self.node is not None else {}
        offsets = [o for o in self.node.clock_offsets.values() if math.isfinite(o)] if self.node is not None else []
        own = {_peer(address): "this is our own key: every peer needs one of its own" for address in self.addresses}
        reasons = {a: tried.get(a, own.get(_peer(a), "not dialled yet")) for a in self._bootstraps}
        return DialReport(reasons, statistics.median(offsets) if offsets else None)

    async def close(self) -> None:
        """End everything within a few seconds. Never raises."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        if self.node is not None:
            node, self.node = self.node, None
            await node.close()
        self._cache.save(force=True)

    async def _keep_running(self, node: DhtNode) -> None:
        """Heal until p2pd is lost, rebuild it, and repeat until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            born = loop.time()
            cause = await self._until_lost(node)
            died = loop.time()
            if died - born > self._times.rebuild.peace:
                self.health.end_streak()
            self.lost_at = self.lost_at or self._now()
            self.node, self._joined = None, False
            self._lost(cause)
            await uninterrupted(node.close(at_once=True))  # no other task would close it
            node = self.node = await self._rebuild()
            self.health.note_alone()
            log.info("the DHT helper (p2pd) is back after %.1f s", loop.time() - died)
            self._watcher.helper_back(loop.time() - died, self.health.times)

    def _lost(self, cause: str) -> None:
        health = self.health
        health.note_loss(cause)
        log.info("%s; starting it again", cause)
        self._watcher.helper_ended(cause, health.times)

    async def _until_lost(self, node: DhtNode) -> str:
        """Wait until this p2pd has to be replaced, and return why, as text."""
        death = asyncio.create_task(node.ended())
        watching = asyncio.create_task(self._watch(node))
        healing = asyncio.create_task(self._heal(node))
        tasks = (death, watching, healing)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # The end of the process, if there is one, explains why it does not answer.
            await asyncio.wait({death}, timeout=0.5)
            if death.done():
                return f"the DHT helper (p2pd) {death.result()}"
            if watching.done():
                return watching.result()
            error = healing.exception()
            if not isinstance(error, LOST):
                log.error("the directory's healing loop failed", exc_info=error)
            return f"the DHT helper (p2pd) does not answer ({error!r})"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, node: DhtNode) -> str:
        """Wait until p2pd hangs or exceeds one of its limits, and return which, as text."""
        owed, limits, name = 0, self._options.limits, "the DHT helper (p2pd)"
        files = files_granted(limits.files)
        while True:
            await asyncio.sleep(self._times.pulse if not owed else 0)
            if (held := node.resident_bytes()) > limits.memory:
                bound = amount(limits.memory, "bytes")
                return f"{name} held {amount(held, 'bytes')} of memory, above its bound of {bound}"
            if node.open_files() >= files:  # it can no longer accept our requests, and busy-loops
                return f"{name} had all its {files} files open: too many connections"
            try:
                await node.answers(self._times.answer)
                owed = 0
            except LOST:
                owed += 1
            if owed == 2:
                return f"{name} hung: twice no answer within {self._times.answer:g} s"

    async def _rebuild(self) -> DhtNode:
        """Restart p2pd until it works, with the same identity, and with the same port if it is free, so that other
        nodes see it as the node they knew."""
        while True:
            await asyncio.sleep(min(self._times.rebuild.first * 2 ** (self.health.times - 1), self._times.rebuild.most))
            try:
                return await self._launch()
            except (AddressError, DirectoryFailed) as error:
                self._lost(error.found)

    async def _launch(self) -> DhtNode:
        """Start p2pd at its former addresses. Raises AddressError or DirectoryFailed.

        If a former port is taken, and was chosen by p2pd and not by the user, p2pd gets another free one."""
        former = self._listen != list(self._asked)
        try:
            with claimed(self._listen) as ready:
                node = await DhtNode.start(self._options, ready, self._gate)
        except AddressError:
            if not former:
                raise
            with claimed(self._asked) as ready:
                node = await DhtNode.start(self._options, ready, self._gate)
        self._listen = ready
        self._cache.note_listened(dict(zip(self._asked, ready, strict=True)))
        return node

    async def _heal(self, node: DhtNode) -> None:
        """Dial missing nodes in rounds, until cancelled. Raises one of LOST if p2pd no longer answers."""
        now, known = asyncio.get_running_loop().time, set[str]()
        refreshed, pause, trimmed = -math.inf, self._times.heal, now()
        while True:
            if node.neighbours() != known and len(known) < ENOUGH:
                pause = self._times.heal
            known, due = node.neighbours(), now() - refreshed >= pause
            await asyncio.gather(*(self._dial(node, address) for address in await self._to_dial(node, others=due)))
            if due or not known:
                refreshed = now()
                with contextlib.suppress(*LOST):
                    await node.refresh()
                pause = min(SLOWER * pause, self._times.refresh)
            await self._learn_addresses(node)
            if self._options.standing().seldom and now() - trimmed >= self._times.trim:
                trimmed = now()
                await node.trim()
            if node.neighbours():
                await self._meet(node)
            else:
                self._joined = False
                self.health.note_alone()
            self._first_round.set()
            await asyncio.sleep(self._times.heal * _jitter() if self._joined else self._times.alone)

    async def _dial(self, node: DhtNode, address: str) -> None:
        if await node.link(address, self._times.dial):
            self._redial.answered(address, asyncio.get_running_loop().time())
            self._note_peers([address])
            await self._meet(node)

    async def _meet(self, node: DhtNode) -> None:
        """Publish our record as soon as the first node answers, without waiting for dials that take long to fail."""
        if self._joined:
            return
        self._joined = True
        self.health.note_joined()
        await self._on_joined(node)
        self.lost_at = None
        self._first_round.set()

    async def _to_dial(self, node: DhtNode, *, others: bool) -> list[str]:
        """Return the addresses to dial: missing bootstrap nodes, and cached addresses.

        If no node is known, all cached addresses are dialled; otherwise one, and only if `others`. That is enough for
        two parts of a swarm that lost each other to join again, as any two of their members suffice. The routing table
        cannot show such a split, since it lists dead nodes until they are called."""
        known = {_peer(address) for address in [*await node.seen_addresses(), *self.addresses]}
        now = asyncio.get_running_loop().time()
        missing = [address for address in self._bootstraps if _peer(address) not in known]
        bootstraps = [one for one in missing if self._redial.is_due(one, now) or not node.neighbours()]
        cached = [address for address in self._cache.addresses() if _peer(address) not in known]
        if node.neighbours() and cached:
            cached = random.sample(cached, 1) if others else []
        return list(dict.fromkeys(bootstraps + cached))

    async def _learn_addresses(self, node: DhtNode) -> None:
        """Update our own addresses, which change with the network, and cache those of other nodes."""
        visible = await node.addresses()
        self.addresses = visible if self._options.announce_maddrs else advertised(visible, self._listen)
        node.set_advertised(self.addresses, closed=self._options.standing().closed)
        self._note_peers(await node.seen_addresses())

    def _note_peers(self, addresses: Iterable[str]) -> None:
        """Cache the addresses of peers with a record. Other nodes of the DHT may be guests, which leave soon."""
        recorded = self._recorded()
        self._cache.record_seen([address for address in addresses if _peer(address) in recorded], self._now())
        self._cache.save()


def _peer(address: str) -> str:
    return address.rpartition("/p2p/")[2]


def _jitter() -> float:
    return random.uniform(2 / 3, 4 / 3)
