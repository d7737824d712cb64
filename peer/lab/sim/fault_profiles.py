"""Profiles of faults by name, and the plan that a seed draws from one. The same plan runs in the simulator and on real
processes."""

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
    """Kinds of faults and their frequency."""

    weights: Mapping[Kind, float]
    """Relative."""
    every_s: float
    """Mean seconds between two faults in the swarm."""


PROFILES = {
    "gentle": Profile({"kill_trainer": 1, "kill_helper": 1, "slow_link": 1, "lag": 1, "disk_full": 1}, 60.0),
    "rough": Profile({"kill": 3, "stall": 2, "kill_trainer": 2, "kill_helper": 2, "cut": 1, "sever": 1}, 30.0),
    "links": Profile({"partition": 1, "cut": 1, "sever": 1, "cut_one_way": 1, "slow_link": 1, "lag": 1}, 30.0),
    "all": Profile(EVERYTHING, 30.0),
}


def parse_profile(text: str) -> Profile:
    """`NAME`, or `NAME@SECONDS` for another mean time between faults. Raises UsageError."""
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
    """Draw a plan from `seed`. Each fault hits a peer that had a round to recover from its last one. At most every
    second peer (rounded down) has a fault at a time. The last one is over, and its peer back, three rounds before
    `duration_s`, so that every recovery can be seen. Times in seconds."""
    drawn = _Drawn(random.Random(f"chaos {seed}"), peers, round_s, duration_s - 3 * round_s)
    at = 1.5 * round_s
    kinds, weights = list(profile.weights), list(profile.weights.values())
    while (at := drawn.free_from(at)) < drawn.quiet_from:
        drawn.add(drawn.rng.choices(kinds, weights)[0], round(at, 1))
        at += drawn.rng.expovariate(1 / profile.every_s)
    return tuple(sorted(drawn.faults, key=lambda fault: fault.at or 0.0))


@dataclass(slots=True)
class _Drawn:
    rng: random.Random
    peers: int
    round_s: float
    quiet_from: float
    faults: list[Fault] = field(default_factory=list)
    busy_until: dict[int, float] = field(default_factory=dict)

    def free_from(self, at: float) -> float:
        """Return the first moment from `at` on at which one more peer may have a fault."""
        busy = sorted((until for until in self.busy_until.values() if until > at), reverse=True)
        most = max(1, self.peers // 2)
        return at if len(busy) < most else busy[most - 1]

    def add(self, kind: Kind, at: float) -> None:
        """Add a fault, if there is time for it to end."""
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
        """Draw a fault's details. `free`: the other peers that may be drawn into it."""
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
