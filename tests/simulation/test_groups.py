"""Groups in virtual time over the in-memory network: one truth, whoever dies, lies, comes late or is cut off."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from blake3 import blake3
from torch import Tensor

from peer.codec.every import EVERY
from peer.daemon.conduct import Conduct
from peer.daemon.group import Averaged, Group
from peer.daemon.grouping import GroupAround
from peer.errors import ExchangeError, NoRoster, Stale
from peer.identity import Identity
from peer.net.seal import KeySeal
from peer.outer.state import OuterState
from peer.protocol.layout import Layout, TensorSpec
from peer.protocol.messages import PeerId, PeerRecord, RoundKey, RunId, Source, Status
from peer.protocol.payload import BytesSource
from peer.protocol.roster import Join, JoinReply, SignedRoster, Told, leaders, parse_roster
from peer.state.fragments import FRAGMENT, FragmentShelf
from peer.testing.clock import EPOCH, VirtualClock, inline, run_virtual
from peer.testing.network import MemoryTransport, Network

RUN = RunId(b"G" * 32)
ELEMENTS = 3000
ROUND_S = 40.0
IDENTITIES = sorted(
    (Identity.from_bytes(b"\x08\x01\x12\x40" + seed + public) for seed, public in []), key=lambda one: one.peer_id
)


def identities(count: int) -> list[Identity]:
    """The same each time."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    keys = [Identity(Ed25519PrivateKey.from_private_bytes(bytes([number + 1]) * 32)) for number in range(count)]
    return sorted(keys, key=lambda one: one.peer_id)


@dataclass
class Eyes:
    """Whom a member sees."""

    known: dict[PeerId, PeerRecord] = field(default_factory=dict)
    banned: Callable[[PeerId], bool] = lambda peer: False
    reachable: bool = True

    @property
    def peers(self) -> dict[PeerId, PeerRecord]:
        return self.known

    def dialable(self) -> bool:
        return self.reachable


class Member:
    """A peer of a test: a group, a state, and what others may ask of it."""

    def __init__(self, identity: Identity, network: Network, codec: str, result: str) -> None:
        self.me = PeerId(identity.peer_id)
        self.eyes = Eyes()
        self.clock = VirtualClock()
        layout = Layout.whole([TensorSpec("w", (ELEMENTS,))])
        self.outer = OuterState.fresh(layout, torch.zeros(ELEMENTS))
        self.events: list[Any] = []
        self.conduct = Conduct(self.clock.now, self.events.append)
        self.transport = MemoryTransport(network, self.me, self, self.clock)
        self.group = Group(
            GroupAround(
                RUN,
                self.me,
                KeySeal(identity),
                self.transport.group,
                self.clock,
                self.eyes,
                self.conduct,
                inline,
                EVERY[codec],
                EVERY[result],
                (ELEMENTS,),
                16,
            )
        )
        self.group.holds(0, self.outer.digest(0))
        self._shelf = FragmentShelf(self.outer, lambda fragment: (self.group.on_held(fragment) or _Nothing).digest)
        self.results: dict[int, Averaged | ExchangeError] = {}

    def on_piece(self, snapshot: str, piece: int) -> memoryview | None:
        assert snapshot.startswith(FRAGMENT)
        return self._shelf.on_piece(snapshot, piece)

    async def round(self, number: int, gradient: Tensor, tokens: int = 100, late_s: float = 0.0) -> None:
        """What a coordinator does in a round."""
        due = EPOCH + number * ROUND_S
        await self.clock.sleep(due + late_s - self.clock.now())
        key = RoundKey(number, 0)
        try:
            got = await self.group.exchange(key, gradient, self.outer.digest(0), tokens, due - 10, due + 10)
        except ExchangeError as error:
            self.results[number] = error
            return
        self.results[number] = got
        mean = got.mean.clone()
        self.outer.descend(0, mean, got.spans, rule="nesterov", outer_lr=0.7, outer_momentum=0.5)
        self.group.holds(0, self.outer.digest(0))

    async def catch_up(self, number: int) -> None:
        """After a round that was stale."""
        error = self.results[number]
        assert isinstance(error, Stale)
        values = await self.group.catch_up(RoundKey(number, 0), error.roster, self.outer.digest(0))  # type: ignore[arg-type]
        if values is not None:
            self.outer.params.copy_(values[0])
            self.outer.momentum.copy_(values[1])
        self.group.holds(0, self.outer.digest(0))

    def got(self, number: int) -> Averaged:
        result = self.results[number]
        assert isinstance(result, Averaged), result
        return result


class _Nothing:
    digest = b""


class Party:
    """Members that see each other."""

    def __init__(self, count: int, codec: str = "fp32", result: str = "fp32", seed: int = 0) -> None:
        print(f"seed {seed}")
        self.network = Network(rng=random.Random(seed))
        self.members = [Member(identity, self.network, codec, result) for identity in identities(count)]
        self.seed = seed
        for member in self.members:
            self.see(member, self.members)

    def see(self, member: Member, others: Sequence[Member]) -> None:
        member.eyes.known = {other.me: _record(other) for other in others if other is not member}

    def gradient(self, number: int, round_: int = 0) -> Tensor:
        maker = torch.Generator().manual_seed(1000 * self.seed + 100 * round_ + number)
        return torch.randn(ELEMENTS, generator=maker) * 0.01

    async def play(self, round_: int, who: Sequence[Member] | None = None, late: dict[int, float] | None = None) -> None:
        """One round of everybody in `who`; `late`: by index, seconds."""
        async with asyncio.TaskGroup() as playing:
            for number, member in enumerate(self.members):
                if who is None or member in who:
                    gradient, late_s = self.gradient(number, round_), (late or {}).get(number, 0.0)
                    playing.create_task(member.round(round_, gradient, 100 * (number + 1), late_s))

    def leader(self, round_: int) -> Member:
        first = leaders(RUN, RoundKey(round_, 0), [member.me for member in self.members])[0]
        return next(member for member in self.members if member.me == first)

    def digests(self, who: Sequence[Member] | None = None) -> set[bytes]:
        return {member.outer.digest(0) for member in who or self.members}


def _record(member: Member) -> PeerRecord:
    reachable = member.eyes.reachable
    return PeerRecord(member.me, RUN, ("memory:0",), reachable, 1, 1, 0, 0.0, Status.TRAINING, EPOCH, EPOCH + 1e9)


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    def run() -> None:
        run_virtual(test())  # type: ignore[arg-type]

    run.__name__ = test.__name__
    return run


def expected(party: Party, numbers: Sequence[int], round_: int = 0) -> Tensor:
    weights = [100 * (number + 1) for number in numbers]
    parts = [party.gradient(n, round_).double() * w for n, w in zip(numbers, weights, strict=True)]
    return torch.stack(parts).sum(0) / sum(weights)


@virtual
async def test_all_apply_the_same_weighted_mean_bit_for_bit() -> None:
    party = Party(5)
    for round_ in range(3):
        await party.play(round_)
        means = [member.got(round_) for member in party.members]
        assert {blake3(got.mean.numpy().tobytes()).digest() for got in means} == {
            blake3(means[0].mean.numpy().tobytes()).digest()
        }
        assert all(got.spans == got.named == [(0, ELEMENTS)] for got in means)
        assert torch.allclose(means[0].mean.double(), expected(party, range(5), round_), rtol=0, atol=1e-8)
        assert len(party.digests()) == 1
    assert not any(member.events for member in party.members)


if __name__ == "__main__":
    test_all_apply_the_same_weighted_mean_bit_for_bit()
