"""Starts of one key: which claims prove another running process, which process stops, and what replays can do."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import pytest

from peer.identity import Identity
from peer.protocol.messages import RunId
from peer.signed_start import MAX_KEYS, MAX_OTHERS, KeyStarts, open_start, seal_start
from tests.support.seeds import seeds

RUN = RunId(b"S" * 32)


@dataclass
class Process:
    """One process with its key and its handling of Hellos."""

    key: Identity
    began_at: float
    starts: KeyStarts = field(init=False)
    found: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.starts = KeyStarts(self.key, RUN, self.began_at, lambda rival: self.found.append(rival.began_at))

    @property
    def stops(self) -> bool:
        return self.starts.earlier is not None

    def says_hello_to(self, server: Process) -> frozenset[bytes]:
        """Simulate a Hello as in `peer.transport`. Return the starts of the caller's key whose tokens become invalid
        there."""
        mine = self.key.public_key
        told = server.starts.claim_for(mine, self.starts.nonce), server.starts.other_of(mine, self.starts.nonce)
        nonce, _ = self.starts.learn(server.key.public_key, told[0])
        self.starts.judge(told[1])
        own, other = self.starts.claim, self.starts.other_of(server.key.public_key, nonce)
        _, named = server.starts.learn(mine, own)
        server.starts.judge(other)
        return named


def copies(first_at: float = 100.0, second_at: float = 200.0) -> tuple[Process, Process]:
    key = Identity.generate()
    return Process(key, first_at), Process(key, second_at)


@pytest.mark.parametrize("caller", [0, 1])
def test_of_two_that_meet_the_later_start_stops_after_one_hello(caller: int) -> None:
    both = first, second = copies()
    both[caller].says_hello_to(both[1 - caller])
    assert (first.stops, second.stops) == (False, True)
    assert (first.found, second.found) in (([200.0], [100.0]), ([], [100.0]))  # the server answers; its caller proves


def test_two_that_nobody_can_dial_are_found_by_a_peer_that_both_call() -> None:
    (first, second), third = copies(), Process(Identity.generate(), 0.0)
    assert not first.says_hello_to(third)
    assert second.says_hello_to(third) == {first.starts.nonce}  # the first receives this in its next call
    assert not second.stops  # a claim from before the second start may be a replay
    assert first.says_hello_to(third) == {second.starts.nonce}
    assert not first.stops
    second.says_hello_to(third)
    assert (first.stops, second.stops) == (False, True)
    assert second.found == [100.0]


def test_two_nodes_that_a_third_calls_are_found() -> None:
    (first, second), third = copies(), Process(Identity.generate(), 0.0)
    for _ in range(3):  # the third peer carries the claims back and forth
        third.says_hello_to(first)
        third.says_hello_to(second)
    assert (first.stops, second.stops) == (False, True)


@pytest.mark.parametrize("seed", seeds(6, 30))
def test_exactly_one_stops_whatever_the_order_of_hellos_and_the_clocks_say(seed: int) -> None:
    """Some starts happen at the same moment, and clocks are wrong by minutes."""
    rng = random.Random(seed)
    first, second = copies(rng.choice([100.0, 100.0, 700.0]), rng.choice([100.0, 40.0]))
    others = [Process(Identity.generate(), 0.0) for _ in range(3)]
    pairs = [(a, b) for a, b in itertools.permutations([first, second, *others], 2) if {a.key, b.key} != {first.key}]
    for _ in range(60):
        rng.shuffle(pairs)
        for caller, server in pairs:
            if not caller.stops and not server.stops:
                caller.says_hello_to(server)
    assert first.stops != second.stops
    assert second.stops == ((first.began_at, first.starts.nonce) < (second.began_at, second.starts.nonce))
    assert not any(other.stops for other in others)


def test_an_own_process_of_before_a_restart_is_no_conflict() -> None:
    (before, after), third = copies(), Process(Identity.generate(), 0.0)
    before.says_hello_to(third)
    for _ in range(3):
        after.says_hello_to(third)  # the third peer shows the old claim again and again
        third.says_hello_to(after)
    assert not after.stops
    assert not after.found


def test_replays_and_forgeries_stop_nobody() -> None:
    """Replays of everything that the key signed before this start, claims signed by a stranger, and altered claims."""
    key, stranger = Identity.generate(), Identity.generate()
    old = [Process(key, float(at)) for at in range(10)]
    for a, b in itertools.permutations(old, 2):
        a.says_hello_to(b)
    mine = Process(key, 1e9)
    forged = seal_start(stranger, RUN, b"n" * 16, 1.0, (mine.starts.nonce,))
    elsewhere = seal_start(key, RunId(b"T" * 32), b"n" * 16, 1.0, (mine.starts.nonce,))
    changed = bytearray(seal_start(key, RUN, b"n" * 16, 1.0, (mine.starts.nonce,)))
    changed[20] ^= 1
    for raw in [*(process.starts.claim for process in old), forged, elsewhere, bytes(changed), b"", b"\xff" * 99]:
        mine.starts.judge(raw)
        mine.starts.learn(key.public_key, raw)
    assert not mine.stops
    assert not mine.found


def test_a_hello_relayed_back_to_its_own_process_is_no_conflict() -> None:
    alone = Process(Identity.generate(), 5.0)
    alone.says_hello_to(alone)
    assert not alone.stops
    assert not alone.found


def test_many_old_claims_do_not_hide_a_proven_start() -> None:
    first, second = copies(200.0, 100.0)
    first.says_hello_to(second)
    assert first.stops
    for at in range(3 * MAX_OTHERS):
        second.starts.judge(Process(second.key, float(at)).starts.claim)
    claim = open_start(second.starts.claim, RUN, second.key.public_key)
    assert claim is not None
    assert first.starts.nonce in claim.others
    assert len(claim.others) <= MAX_OTHERS


def test_a_caller_that_only_names_our_key_leaves_no_trace() -> None:
    node = Process(Identity.generate(), 5.0)
    before = node.starts.claim
    for at in range(20):
        claim = open_start(node.starts.claim_for(node.key.public_key, bytes([at]) * 16), RUN, node.key.public_key)
        assert claim is not None
        assert claim.others == {bytes([at]) * 16}
    assert node.starts.claim == before


def test_the_claims_of_others_are_bounded() -> None:
    node, key = Process(Identity.generate(), 5.0), Identity.generate()
    for at in range(3 * MAX_OTHERS):
        Process(key, float(at)).says_hello_to(node)
    assert len(node.starts._met[key.public_key]) == MAX_OTHERS
    for number in range(MAX_KEYS + 5):
        node.starts._met[number.to_bytes(32, "big")] = node.starts._met[key.public_key]
    Process(Identity.generate(), 1.0).says_hello_to(node)
    assert len(node.starts._met) == MAX_KEYS


@pytest.mark.parametrize("nonces", [(b"short", ()), (b"n" * 16, (b"long" * 5,)), (b"n" * 16, (b"n" * 16,) * 5)])
def test_a_malformed_claim_is_none(nonces: tuple[bytes, tuple[bytes, ...]]) -> None:
    key = Identity.generate()
    assert open_start(seal_start(key, RUN, nonces[0], 1.0, nonces[1]), RUN, key.public_key) is None
    assert open_start(seal_start(key, RUN, b"n" * 16, float("nan"), ()), RUN, key.public_key) is None
    assert open_start(seal_start(key, RUN, b"n" * 16, 1.0, ()), RUN, key.public_key) is not None
