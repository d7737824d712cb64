"""Faults as plain data: which peer, which kind, when. A plan is a tuple of faults; its repr is the Python that makes
the same plan.

    [Fault("kill", 2, at=35.0), Fault("restart", 2, at=80.0), Fault("stall", 0, on="round_due", nth=3, seconds=12.0)]"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

Kind = Literal[
    "kill",
    "restart",
    "rejoin",
    "stall",
    "stall_trainer",
    "kill_trainer",
    "kill_helper",
    "partition",
    "cut",
    "sever",
    "cut_one_way",
    "loss_burst",
    "slow_link",
    "lag",
    "disk_full",
    "clock_jump",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
LASTING: tuple[Kind, ...] = tuple(
    kind for kind in KINDS if kind not in ("kill", "restart", "rejoin", "kill_trainer", "kill_helper")
)
HELPER_AWAY_S = 3.0
"""Simulated seconds without a directory after its helper process was killed. A real helper is back in 1 to 8 s."""


@dataclass(frozen=True, kw_only=True)
class _When:
    """When a fault happens: at a time (`at`), or with an event of the peer's journal (`on`, `nth`). Exactly one of the
    two."""

    at: float | None = None
    """Seconds after the simulation began."""
    on: str = ""
    """The kind of the journal event with which the fault happens."""
    nth: int = 1
    """Which event of this kind: its number from 1, counted over all lives of the peer."""


@dataclass(frozen=True)
class Fault(_When):
    """One fault of one peer.

    kill            SIGKILL to the whole machine: not even `finally` runs; its record stays until it expires
    restart         a killed machine is back with its last checkpoint, or fetches a donor's state if it has none
    rejoin          a killed machine is back with nothing but its journal, and fetches the state from a donor
    stall           SIGSTOP for `seconds`: nothing runs; timers fall due and messages wait until it continues. With real
                    processes only the daemon is stopped; with `amount` 1 its trainer too
    stall_trainer   SIGSTOP to the trainer alone, for `seconds`
    kill_trainer    SIGKILL to the trainer alone
    kill_helper     SIGKILL to the directory's helper process: the peer has no directory until the helper is back
    partition       for `seconds` nothing passes between the peer with `others` and the rest of the swarm
    cut             for `seconds` nothing passes between the peer and `others`; connections stay open but silent
    sever           as cut, but connections break and new ones are refused
    cut_one_way     for `seconds` everything that the peer sends to `others` is lost
    loss_burst      for `seconds` an additional share `amount` of its packets is lost
    slow_link       for `seconds` the rates of its link are multiplied by `amount`
    lag             for `seconds` everything it sends or receives arrives `amount` seconds later
    disk_full       for `seconds` nothing large can be written at its home: checkpoints fail
    clock_jump      its wall clock jumps by `amount` seconds, and back after `seconds`"""

    kind: Kind
    peer: int
    """Number of the peer in the swarm, from 0."""
    seconds: float = 0.0
    amount: float = 0.0
    others: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind
        assert (self.at is None) != (not self.on), "either a time or an event"
        assert self.nth >= 1
        assert (self.seconds > 0) == (self.kind in LASTING), (self.kind, self.seconds)

    def __repr__(self) -> str:
        given = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if self._is_given(f.name, f.default)]
        return f"Fault({', '.join([repr(self.kind), repr(self.peer), *given])})"

    def _is_given(self, name: str, default: object) -> bool:
        return name not in ("kind", "peer") and getattr(self, name) != default


RATES: dict[Kind, float] = {
    "kill": 2.0,
    "stall": 2.0,
    "kill_trainer": 2.0,
    "partition": 1.0,
    "cut": 1.0,
    "cut_one_way": 1.0,
    "loss_burst": 1.0,
    "slow_link": 1.0,
}
"""Default rates of `random_plan`: faults of each kind per peer and hour. High, because the simulated rounds are
short."""


def random_plan(
    seed: int, peers: int, duration_s: float, rates: Mapping[Kind, float] | None = None, *, round_s: float = 300.0
) -> tuple[Fault, ...]:
    """Draw faults from `seed`. `rates`: faults of each kind per peer and hour, by default `RATES`. Each kill is
    followed by a restart or a rejoin if there is time for it. Peer 0 is never killed, so that there is always a donor.
    Many kills and stalls are tied to a round's journal event, because faults in the middle of an exchange find most
    errors."""
    rng = random.Random(f"faults {seed}")
    plan: list[Fault] = []
    down_until = [0.0] * peers
    for at, kind, peer in _moments(rng, peers, duration_s, RATES if rates is None else rates):
        if at < down_until[peer]:
            continue
        if kind != "kill":
            plan.append(_fault(rng, kind, peer, at, peers, round_s))
        elif peer != 0:
            back = at + rng.uniform(1.2, 3.0) * round_s
            down_until[peer] = back + 2 * round_s
            plan.append(_kill(rng, peer, at, round_s))
            plan.append(Fault(rng.choice(("restart", "rejoin")), peer, at=round(back, 3)))
    return tuple(plan)


def _moments(
    rng: random.Random, peers: int, duration_s: float, rates: Mapping[Kind, float]
) -> Sequence[tuple[float, Kind, int]]:
    """Draw (time, kind, peer) in the order of time: a Poisson process for each kind and peer."""
    moments: list[tuple[float, Kind, int]] = []
    for kind, per_hour in rates.items():
        for peer in range(peers if per_hour > 0 else 0):
            at = rng.expovariate(per_hour / 3600)
            while at < duration_s:
                moments.append((at, kind, peer))
                at += rng.expovariate(per_hour / 3600)
    return sorted(moments)


def _kill(rng: random.Random, peer: int, at: float, round_s: float) -> Fault:
    """Draw a kill: at `at` seconds, or with the journal event of the round that is due at about that time."""
    nth = 1 + int(at / round_s)
    return rng.choice(
        (
            Fault("kill", peer, at=round(at, 3)),
            Fault("kill", peer, on="round_due", nth=nth),
            Fault("kill", peer, on="round_ended", nth=nth),
        )
    )


def _fault(rng: random.Random, kind: Kind, peer: int, at: float, peers: int, round_s: float) -> Fault:
    at = round(at, 3)
    seconds = round(rng.uniform(0.05, 2.0) * round_s, 3)
    others = [number for number in range(peers) if number != peer]
    match kind:
        case "kill_trainer":
            return Fault(kind, peer, at=at)
        case "stall":
            seconds = round(rng.uniform(0.02, 0.6) * round_s, 3)
            if rng.random() < 0.5:
                return Fault(kind, peer, on="round_due", nth=1 + int(at / round_s), seconds=seconds)
            return Fault(kind, peer, at=at, seconds=seconds)
        case "partition":
            some = rng.sample(others, rng.randrange(len(others) + 1) // 2)
            return Fault(kind, peer, at=at, seconds=seconds, others=tuple(sorted(some)))
        case "cut" | "cut_one_way":
            return Fault(kind, peer, at=at, seconds=seconds, others=(rng.choice(others),))
        case "loss_burst":
            return Fault(kind, peer, at=at, seconds=seconds, amount=round(rng.uniform(0.01, 0.3), 3))
        case _:
            return Fault(kind, peer, at=at, seconds=seconds, amount=round(rng.uniform(0.01, 0.5), 3))
