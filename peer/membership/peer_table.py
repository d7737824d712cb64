"""The peers of the run that this peer knows: read from the directory from time to time, and learned from callers. It
also keeps our own record in the directory fresh."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import replace
from typing import NamedTuple

from peer.membership.failure_detector import FailureDetector
from peer.membership.own_record import OwnRecord
from peer.ports.clock import Clock
from peer.ports.directory import Directory
from peer.protocol.messages import MAX_ENDPOINTS, PeerId, PeerRecord, Reach, Status, first_expiry
from peer.protocol.pair.acquaintance import Acquaintance
from peer.protocol.swarm.failure_detection import DOUBT_S

LOOK_EVERY_S = 3.0
"""Least seconds between two looks into the directory; see `pace`."""
LOOKS_A_ROUND, LONG_ROUND_S = 10, 120.0
"""Looks in a round; one only if the round lasts LONG_ROUND_S seconds or more. `results/control_bytes.json` has the cost
of looks."""
SELDOM_S = 300.0
"""Most seconds between two looks."""
ALONE_S = 30.0
"""Most seconds between two looks while no other peer is known."""
RECORD_TTL_S = 45.0
"""Least lifetime of our record in seconds; see `lifetime`."""
TOLD_S = 10.0
"""A record that a caller showed counts for this many seconds, and then until the next look, which should find it in the
directory."""
GLANCE_S = 0.5
"""Least seconds until a change of our own record is noticed."""
ANNOUNCE_ROUND_EVERY_S = 2.0
"""Least seconds between two announcements if only the round has changed."""
CALLS_S, ASKED, WAITS_S = 80.0, 20, 5.0
"""For peers that wait for each other: calls per second of all of them together, nodes that a look asks, and the most
seconds between two looks."""


def pace(round_s: float | None) -> float:
    """Return the seconds between two looks into the directory, for rounds of `round_s` seconds (None: rounds are
    counted in steps).

    A short round gets several looks, a long one a single look. A look costs the directory a lookup, and this peer work
    for each record. Newcomers make themselves known without looks (`peer.membership.peer_exchange`)."""
    if round_s is None:
        return LOOK_EVERY_S
    looks = LOOKS_A_ROUND if round_s < LONG_ROUND_S else 1
    return min(max(LOOK_EVERY_S, round_s / looks), SELDOM_S)


def lifetime(look_every_s: float) -> float:
    """Return the lifetime of a record in seconds. A record is renewed after a third of its lifetime, so other peers may
    find a record that is already a third old. It must not expire before their next look."""
    return max(RECORD_TTL_S, 3 * look_every_s)


def waiting_pause(least_s: float, peers: int) -> float:
    """Return the seconds between two looks for each of `peers` peers that wait for each other. They all look at the
    same time, and each look asks up to `ASKED` nodes. To keep the number of calls per second constant, the pause grows
    with the square of `peers` up to `ASKED` peers, and linearly beyond, from `least_s` to `WAITS_S`."""
    return max(least_s, min(peers * min(peers, ASKED) / CALLS_S, WAITS_S))


class _Sorted(NamedTuple):
    """The merged records by kind."""

    training: list[PeerId]
    uncallable: frozenset[PeerId]
    relayed: frozenset[PeerId]


class PeerTable:
    """The known peers of the run: their live records, who trains, who can be called, and who may be a partner.

    `own`: makes our own record. `detector`: decides which peers no longer answer. `look_every_s`: see `pace`. `banned`:
    returns the peers that the operator has banned. `changed`: called with the number of live peers and a reason when
    their set changes."""

    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        rng: random.Random,
        own: OwnRecord,
        detector: FailureDetector,
        look_every_s: float = LOOK_EVERY_S,
        banned: Callable[[], Container[PeerId]] = frozenset,
        changed: Callable[[int, str], None] = lambda count, reason: None,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._rng = rng
        self._own = own
        self._changed = changed
        self._look_every_s = look_every_s
        self._lifetime_s = lifetime(look_every_s)
        self._merged: dict[PeerId, PeerRecord] | None = None
        self._merged_for = (0.0, 0.0)
        """Run times from which and until which `_merged` is up to date."""
        self._sorted: _Sorted | None = None
        """`_merged` by kind; None: not computed yet."""
        self._present: dict[PeerId, PeerRecord] = {}
        self._looked: dict[PeerId, PeerRecord] = {}
        self._good_until = float("inf")
        self._looked_at = float("-inf")
        self._told: dict[PeerId, tuple[float, PeerRecord]] = {}
        self._announced: PeerRecord | None = None
        self.acquaintance = Acquaintance()
        self.detector = detector
        self.banned = banned

    @property
    def peers(self) -> dict[PeerId, PeerRecord]:
        """The live records, from the directory and from callers; of two records of a peer, the one issued later. Read
        many times a second, so the merge is cached until a record expires or arrives."""
        now = self._clock.now()
        since, until = self._merged_for
        if self._merged is None or not since <= now < until:
            self._merged = self._merge(now)
        return self._merged

    def _merge(self, now: float) -> dict[PeerId, PeerRecord]:
        looked, later = self._looked, dict[PeerId, PeerRecord]()
        until, told_until = self._good_until, float("inf")
        for peer, (told_at, record) in self._told.items():
            told_to = told_at + TOLD_S if told_at < self._looked_at else record.expires_at
            fresh = told_to > now and record.status is not Status.LEAVING
            if fresh and (peer not in looked or looked[peer].issued_at < record.issued_at):
                later[peer] = record
                until, told_until = min(until, record.expires_at), min(told_until, told_to)
        merged = looked | later if later else looked
        if near := self._directory.own_network():
            merged = _with_near(merged, near)
        if until <= now:
            merged = {peer: record for peer, record in merged.items() if record.expires_at > now}
            until = first_expiry(merged)
        self._merged_for = now, min(until, told_until)
        self._sorted = None
        return merged

    def near(self) -> Collection[PeerId]:
        """Return the peers in our own network. They can dial us, and we can dial them."""
        return self._directory.own_network().keys()

    async def known(self) -> dict[PeerId, PeerRecord]:
        return self.peers

    def learn(self, record: PeerRecord) -> None:
        """Add the verified record that a caller showed."""
        if len(self._told) >= 1024:
            self._told.clear()
        self._told[record.peer_id] = (self._clock.now(), record)
        self._merged = None
        self.detector.heard(record.peer_id, "it called")

    def candidates(self, round_: int, proven: Collection[PeerId] = ()) -> list[PeerId]:
        """Return the live peers that train, are neither banned nor out (`peer.protocol.swarm.failure_detection`), and
        were not met too often lately. `proven`: the peers that are proven to us."""
        outs, banned, training = self.detector.membership.peers_out(), self.banned(), self._trainers()
        if outs or banned:
            training = [peer for peer in training if peer not in outs and peer not in banned]
        tired = self.acquaintance.all_met_too_often(round_, self.live(), proven)
        return [peer for peer in training if peer not in tired] if tired else training

    def remembered(self) -> list[PeerRecord]:
        """Return the callable peers of the last look, expired or not. After the machine slept, there are no fresher
        records."""
        return [record for record in self._looked.values() if record.reach]

    def vouch_for(self, about: PeerId) -> tuple[PeerRecord | None, float | None]:
        """Return a peer's record, and the seconds since its last sign of life, for another peer that asks whether we
        reach it."""
        return self.peers.get(about), self.detector.contact_age_s(about)

    def own_reach(self, by: PeerId | None = None) -> Reach:
        """Return how other peers can call us, according to our record. `by`: the calling peer, which can call us
        directly if it is in our own network."""
        own = self._own.peek()
        if own.reachable or by in self.near():
            return Reach.DIRECT
        return Reach.RELAYED if own.relays else Reach.NONE

    def relay_rate(self) -> float:
        """Return the bytes per second that our best relay forwards; 0: we have no relay."""
        return self._own.relay_rate()

    def reach_of(self, peer: PeerId) -> Reach:
        """Return how we can call a live peer."""
        if peer in self.uncallable():
            return Reach.NONE
        return Reach.RELAYED if peer in self.relayed() else Reach.DIRECT

    def is_open(self, peer: PeerId) -> bool:
        """Return whether we can dial a peer at an address of its own. Peers that are not known count as open."""
        return self.reach_of(peer) is Reach.DIRECT

    def own_endpoints(self) -> tuple[str, ...]:
        """Return the addresses in our record."""
        return self._own.peek().endpoints

    def uncallable(self) -> frozenset[PeerId]:
        """Return the live peers that we cannot call, because they have neither an open address nor a relay."""
        return self._sorted_out().uncallable

    def relayed(self) -> frozenset[PeerId]:
        """Return the live peers that we can call only over a relay."""
        return self._sorted_out().relayed

    def live(self) -> int:
        """Return the number of training peers, ourselves included, but count no more other peers than have ever
        answered us. The number decides how soon a pair may meet again, and invented records must not increase it."""
        return 1 + min(self.others_training(), self.detector.answering.contacts())

    def others_training(self) -> int:
        return len(self._trainers())

    def _trainers(self) -> list[PeerId]:
        return self._sorted_out().training

    def _sorted_out(self) -> _Sorted:
        """Return the merged records by kind. One pass computes all kinds, because reading the records misses the
        processor's caches."""
        peers, trains = self.peers, Status.TRAINING
        if self._sorted is None:
            training = [peer for peer, record in peers.items() if record.status is trains]
            near = self.near()
            closed = {p: r.relays for p, r in peers.items() if not r.reachable and p not in near}
            relayed = frozenset([peer for peer, relays in closed.items() if relays])
            self._sorted = _Sorted(training, frozenset(closed) - relayed, relayed)
        return self._sorted

    def claimed_rounds(self) -> dict[PeerId, int]:
        """Return the rounds in which the live training peers claim to be. The claims are not verified."""
        return {peer: record.round for peer, record in self.peers.items() if record.status is Status.TRAINING}

    def touch(self) -> None:
        """Announce our record soon, because it has changed in a way that matters to others."""
        self._own.changed.set()

    async def look(self) -> None:
        """Read the directory now, and update the set of live peers."""
        began = self._clock.now()
        self._looked = await self._directory.peers()
        self._looked_at = began
        self._good_until = self._directory.good_until
        self._merged = None
        present, before = self.peers, self._present
        self._present = present
        self.detector.seen(present)
        if present.keys() != before.keys():
            stayed = len(present.keys() & before.keys())
            came, went = len(present) - stayed, len(before) - stayed
            self.acquaintance.forget_absent(present)
            self._changed(len(present), f"{came} came, {went} went")

    async def announce(self) -> None:
        """Publish our record now."""
        self._own.changed.clear()
        self._announced = self._own.describe()
        await self._directory.announce(self._announced)

    async def refresh(self) -> None:
        """Renew our record and read the directory after the machine slept. Failures measured before are forgotten."""
        self.detector.forget()
        await self.announce()
        await self.look()

    async def run(self) -> None:
        """Look and announce until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_looking())
            group.create_task(self._keep_announcing())

    async def _keep_looking(self) -> None:
        """Look often after a start and ever more rarely later."""
        every_s = min(LOOK_EVERY_S, self._look_every_s)
        while True:
            await self.look()
            pause_s = every_s if self._present else min(every_s, ALONE_S)
            await self._pause(pause_s * self._rng.uniform(0.8, 1.2))
            every_s = min(2 * every_s, self._look_every_s)

    async def _pause(self, seconds: float) -> None:
        """Pause between two looks for `seconds`. If a peer is suspected, only for DOUBT_S, or until a later suspicion:
        the suspect may have announced itself again, or have left."""
        await self._clock.sleep(min(seconds, DOUBT_S))
        if seconds > DOUBT_S and not self.detector.membership.doubts():
            await self.detector.suspicion(seconds - DOUBT_S)

    async def _keep_announcing(self) -> None:
        while True:
            await self.announce()
            announced = self._clock.now()
            glance_s = max(GLANCE_S, self._look_every_s - LOOK_EVERY_S)  # others do not look more often than we do
            while not self._stale(announced):
                renewal_s = announced + self._lifetime_s / 3 - self._clock.now()
                if await self._own.changed.wait_for(max(GLANCE_S, min(glance_s, renewal_s))):
                    break

    def _stale(self, announced_at: float) -> bool:
        age = self._clock.now() - announced_at
        return age >= self._lifetime_s / 3 or (age >= ANNOUNCE_ROUND_EVERY_S and self._moved())

    def _moved(self) -> bool:
        return self._announced is None or self._announced.round != self._own.peek().round


def _with_near(
    records: Mapping[PeerId, PeerRecord], near: Mapping[PeerId, tuple[str, ...]]
) -> dict[PeerId, PeerRecord]:
    """Return the records, with the addresses of peers in our own network first."""
    found = dict(records)
    for peer in near.keys() & found.keys():
        endpoints = dict.fromkeys([*near[peer], *found[peer].endpoints])
        found[peer] = replace(found[peer], endpoints=tuple(endpoints)[:MAX_ENDPOINTS])
    return found
