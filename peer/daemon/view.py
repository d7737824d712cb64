"""Who is there, as this peer sees it: reads the directory now and then, and keeps our own record in it fresh."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from peer.daemon.interfaces import Clock, Directory
from peer.protocol.messages import PeerId, PeerRecord, Status
from peer.protocol.pairing import Acquaintance
from peer.protocol.roundclock import lower_median

LOOK_EVERY_S = 3.0
RECORD_TTL_S = 45.0
TOLD_S = 10.0
"""What a caller said of itself counts so long: until the directory shows it."""
ANNOUNCE_ROUND_EVERY_S = 2.0
"""A new round alone is not announced more often than this."""


class View:
    """`describe` makes our current record; `changed` is called when the set of live peers changes."""

    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        rng: random.Random,
        describe: Callable[[], PeerRecord],
        changed: Callable[[int, str], None] = lambda count, reason: None,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._rng = rng
        self._describe = describe
        self._changed = changed
        self._looked: dict[PeerId, PeerRecord] = {}
        self._told: dict[PeerId, tuple[float, PeerRecord]] = {}
        self._announced: PeerRecord | None = None
        self._dirty = asyncio.Event()
        self.acquaintance = Acquaintance()
        self.banned: Callable[[PeerId], bool] = lambda peer: False

    @property
    def peers(self) -> dict[PeerId, PeerRecord]:
        """The live records, from the directory and from what callers said of themselves; the later issued wins."""
        now = self._clock.now()
        merged = dict(self._looked)
        for peer, (told_at, record) in self._told.items():
            fresh = told_at + TOLD_S > now
            if fresh and (peer not in merged or merged[peer].issued_at < record.issued_at):
                merged[peer] = record
        return {peer: record for peer, record in merged.items() if record.expires_at > now}

    async def known(self) -> list[PeerRecord]:
        return list(self.peers.values())

    def learn(self, record: PeerRecord) -> None:
        """A caller showed its record, already verified."""
        if len(self._told) >= 1024:
            self._told.clear()
        self._told[record.peer_id] = (self._clock.now(), record)

    def candidates(self, round_: int) -> list[PeerId]:
        """Live peers that train and were not met too often lately."""
        training = [peer for peer, record in self.peers.items() if record.status is Status.TRAINING]
        training = [peer for peer in training if not self.banned(peer)]
        return [p for p in training if not self.acquaintance.too_often(p, round_, len(training) + 1)]

    def dialable(self) -> bool:
        """Whether others can dial us, as our record says."""
        return self._describe().reachable

    def undialable(self) -> frozenset[PeerId]:
        """Live peers that only dial out."""
        return frozenset(peer for peer, record in self.peers.items() if not record.reachable)

    def others_training(self) -> int:
        return sum(record.status is Status.TRAINING for record in self.peers.values())

    def swarm_round(self, own: int) -> int:
        """Lower median of the live training records, ourselves included."""
        rounds = [record.round for record in self.peers.values() if record.status is Status.TRAINING]
        median = lower_median([*rounds, own])
        assert median is not None
        return median

    def run_start(self) -> float:
        """When round 0 began, from the records; the earliest word wins. 0: nobody says."""
        return min((r.run_start for r in self.peers.values() if r.run_start > 0), default=0.0)

    def touch(self) -> None:
        """Our record changed in a way others should know soon (status)."""
        self._dirty.set()

    async def look(self) -> None:
        """Read the directory now."""
        before = {peer for peer, record in self.peers.items() if record.status is not Status.LEAVING}
        self._looked = {record.peer_id: record for record in await self._directory.peers()}
        after = {peer for peer, record in self.peers.items() if record.status is not Status.LEAVING}
        self.acquaintance.forget_absent(self.peers)
        if before != after:
            self._changed(len(after), f"{len(after - before)} came, {len(before - after)} went")

    async def announce(self) -> None:
        """Publish our record now."""
        self._dirty.clear()
        self._announced = self._describe()
        await self._directory.announce(self._announced)

    async def run(self) -> None:
        """Look and announce for ever; the owner cancels."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_looking())
            group.create_task(self._keep_announcing())

    async def _keep_looking(self) -> None:
        while True:
            await self.look()
            await self._clock.sleep(LOOK_EVERY_S * self._rng.uniform(0.8, 1.2))

    async def _keep_announcing(self) -> None:
        while True:
            await self.announce()
            announced = self._clock.now()
            while not self._stale(announced):
                try:
                    async with asyncio.timeout(0.5):
                        await self._dirty.wait()
                except TimeoutError:
                    continue
                break

    def _stale(self, announced_at: float) -> bool:
        age = self._clock.now() - announced_at
        moved = self._announced is None or self._announced.round != self._describe().round
        return age >= RECORD_TTL_S / 3 or (moved and age >= ANNOUNCE_ROUND_EVERY_S)
