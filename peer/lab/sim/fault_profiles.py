"""Named fault profiles, and the drawing of a fault plan from a profile and a seed. The same plan can be played in the
simulator and on real processes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from peer.errors import UsageError
from peer.lab.sim.faults import Fault, Kind

EVERYTHING: dict[Kind, float] = {
    "kill": 2.0,
    "stall": 2.0,
    "stall_trainer": 1.0,
    "kill_trainer": 2.0,
    "kill_helper": 2.0,
    "partition": 1.0,
    "cut": 1.0,
    "sever": 1.0,
    "cut_one_way": 1.0,
    "slow_link": 2.0,
    "lag": 1.0,
    "disk_full": 1.0,
    "clock_jump": 1.0,
}


@dataclass(frozen=True, slots=True)
class Profile:
    """Which faults happen, and how often."""

    weights: Mapping[Kind, float]
    """Relative frequency of each kind."""
    every_s: float
    """Mean seconds between two faults in the swarm."""


PROFILES = {
    "gentle": Profile({"kill_trainer": 1, "kill_helper": 1, "slow_link": 1, "lag": 1, "disk_full": 1}, 60.0),
    "rough": Profile({"kill": 3, "stall": 2, "kill_trainer": 2, "kill_helper": 2, "cut": 1, "sever": 1}, 30.0),
    "links": Profile({"partition": 1, "cut": 1, "sever": 1, "cut_one_way": 1, "slow_link": 1, "lag": 1}, 30.0),
    "all": Profile(EVERYTHING, 30.0),
}


def parse_profile(text: str) -> Profile:
    """Parse `NAME`, or `NAME@SECONDS` with another mean time between faults. Raises UsageError."""
    name, at, seconds = text.partition("@")
    if name not in PROFILES:
        raise UsageError(f"there is no chaos profile {name!r}", f"Known: {', '.join(PROFILES)}. Example: all@20s.")
    if not at:
        return PROFILES[name]
    try:
        every_s = float(seconds.removesuffix("s"))
    except ValueError:
        every_s = 0.0
    if not 0.1 <= every_s <= 1e6:
        raise UsageError(f"{text!r}: the mean time between faults is seconds from 0.1", "Write e.g. all@20s.")
    return replace(PROFILES[name], every_s=every_s)


def chaos_plan(profile: Profile, seed: int, peers: int, duration_s: float, round_s: float) -> tuple[Fault, ...]:
    """Draw a plan from `seed`. A peer's next fault begins at least one round after the end of its previous one. At most
    half of the peers (rounded down, but at least one) have a fault at the same time. The last fault ends three rounds
    before `duration_s`, so that the run shows every recovery. `round_s`: the length of a round. All times in
    seconds."""
    drawn = _Drawn(random.Random(f"chaos {seed}"), peers, round_s, duration_s - 3 * round_s)
    at = 1.5 * round_s
    kinds, weights = list(profile.weights), list(profile.weights.values())
    while (at := drawn.free_from(at)) < drawn.quiet_from:
        drawn.add(drawn.rng.choices(kinds, weights)[0], round(at, 1))
        at += drawn.rng.expovariate(1 / profile.every_s)
    return tuple(sorted(drawn.faults, key=lambda fault: fault.at or 0.0))


@dataclass(slots=True)
class _Drawn:
    """A plan while it is drawn: the faults so far, and until when each peer is busy with one."""

    rng: random.Random
    peers: int
    round_s: float
    quiet_from: float
    faults: list[Fault] = field(default_factory=list)
    busy_until: dict[int, float] = field(default_factory=dict)

    def free_from(self, at: float) -> float:
        """Return the first time from `at` on at which one more peer may get a fault."""
        busy = sorted((until for until in self.busy_until.values() if until > at), reverse=True)
        most = max(1, self.peers // 2)
        return at if len(busy) < most else busy[most - 1]

    def add(self, kind: Kind, at: float) -> None:
        """Draw a fault of this kind at this time. Drops it if it would end after `quiet_from`."""
        free = [peer for peer in range(self.peers) if self.busy_until.get(peer, 0.0) <= at + 0.1]
        peer = free.pop(self.rng.randrange(len(free)))
        seconds = round(self.rng.uniform(0.3, 1.5) * self.round_s, 1)
        if at + seconds > self.quiet_from:
            return
        faults = self._fault(kind, peer, at, seconds, free)
        others = faults[0].others if len(faults[0].others) < self.peers - 1 else ()
        for one in (peer, *others):
            self.busy_until[one] = at + seconds + self.round_s
        self.faults += faults

    def _fault(self, kind: Kind, peer: int, at: float, seconds: float, free: list[int]) -> list[Fault]:
        """Draw the details of a fault. `free`: other peers that may be involved in it, because they have no fault at
        the time."""
        rng, others = self.rng, [number for number in range(self.peers) if number != peer]
        match kind:
            case "kill":
                back = round(at + seconds, 1)
                return [Fault("kill", peer, at=at), Fault(rng.choice(("restart", "rejoin")), peer, at=back)]
            case "kill_trainer" | "kill_helper":
                return [Fault(kind, peer, at=at)]
            case "stall":
                return [Fault(kind, peer, at=at, seconds=seconds, amount=float(rng.random() < 0.3))]
            case "partition":
                some = tuple(sorted(rng.sample(free, min(len(free), rng.randrange(max(1, len(others) // 2))))))
                return [Fault(kind, peer, at=at, seconds=seconds, others=some)]
            case "cut" | "sever" | "cut_one_way":
                some = tuple(others) if not free or rng.random() < 0.5 else (rng.choice(free),)
                return [Fault(kind, peer, at=at, seconds=seconds, others=some)]
            case "loss_burst":
                return [Fault(kind, peer, at=at, seconds=seconds, amount=round(rng.uniform(0.01, 0.3), 3))]
            case "slow_link":
                return [Fault(kind, peer, at=at, seconds=seconds, amount=round(rng.uniform(0.1, 0.5), 3))]
            case "lag":
                return [Fault(kind, peer, at=at, seconds=seconds, amount=round(rng.uniform(0.05, 0.5), 3))]
            case "clock_jump":
                return [Fault(kind, peer, at=at, seconds=seconds, amount=rng.choice((-3600.0, -600.0, 600.0, 3600.0)))]
            case _:
                return [Fault(kind, peer, at=at, seconds=seconds)]
