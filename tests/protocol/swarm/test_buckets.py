"""Buckets split and merge without a coordinator, no peer is lost meanwhile, and a read costs the same in any swarm."""

from __future__ import annotations

from collections import defaultdict

import pytest

from peer.protocol.messages import MAX_RECORD_TTL_S, PeerId
from peer.protocol.swarm.buckets import MAX_DEPTH, SPLIT, DirectoryBuckets, across, address, places_of, turn

LIFETIME_S = 40.0
ROUND_S = 10.0


class Hub:
    """A directory: which peer is announced in which bucket, and until when."""

    def __init__(self) -> None:
        self.now = 0.0
        self.round = 0
        self.held: dict[str, dict[PeerId, float]] = defaultdict(dict)
        self.peers: dict[PeerId, DirectoryBuckets] = {}
        self.met: dict[PeerId, set[PeerId]] = {}
        """Peers that each peer saw in its last read."""
        self.read: dict[PeerId, tuple[int, int]] = {}
        """Number of buckets and records in each peer's last read."""

    def join(self, *names: int) -> None:
        self.peers |= {peer: DirectoryBuckets(peer) for peer in map(_peer, names)}

    def go(self, *names: int) -> None:
        for peer in map(_peer, names):
            del self.peers[peer], self.met[peer], self.read[peer]

    def live(self, bits: str) -> set[PeerId]:
        return {peer for peer, until in self.held.get(bits, {}).items() if until > self.now}

    def announce(self, peer: PeerId) -> None:
        for bits in self.peers[peer].places(self.now):
            self.held[bits][peer] = self.now + LIFETIME_S

    def look(self, peer: PeerId) -> None:
        buckets = self.peers[peer]
        found = {bits: self.live(bits) for bits in buckets.reads(self.round)}
        found |= {bits: self.live(bits) for bits in buckets.more(self.round, found)}
        self.met[peer] = set().union(*found.values()) - {peer}
        self.read[peer] = len(found), sum(map(len, found.values()))
        if buckets.saw(found, self.now):
            self.announce(peer)

    def rounds(self, count: int) -> None:
        for _ in range(count):
            for peer in self.peers:
                self.announce(peer)
            for peer in self.peers:
                self.look(peer)
            self.now += ROUND_S
            self.round += 1

    def depths(self) -> set[int]:
        return {buckets.depth for buckets in self.peers.values()}


def _peer(number: int) -> PeerId:
    return PeerId(f"peer-{number}")


def test_a_small_swarm_has_one_bucket_and_sees_everybody() -> None:
    hub = Hub()
    hub.join(*range(SPLIT))
    hub.rounds(5)
    assert hub.depths() == {0}
    assert {len(met) for met in hub.met.values()} == {SPLIT - 1}
    assert {read for read, _ in hub.read.values()} == {1}


@pytest.mark.parametrize("count", [65, 256, 600])
def test_full_buckets_split_and_nobody_is_lost(count: int) -> None:
    hub = Hub()
    hub.join(*range(count))
    hub.rounds(3 + count.bit_length() - 6)
    sizes: dict[str, set[PeerId]] = defaultdict(set)
    for peer, buckets in hub.peers.items():
        sizes[buckets.own].add(peer)
    assert max(map(len, sizes.values())) <= SPLIT
    met: dict[PeerId, set[PeerId]] = defaultdict(set)
    for _ in range(2 * len(sizes)):
        hub.rounds(1)
        for peer, buckets in hub.peers.items():
            assert hub.met[peer] >= sizes[buckets.own] - {peer}, "its own bucket, whole"
            met[peer] |= hub.met[peer]
    assert min(len(known) for known in met.values()) > 0.6 * count, "in time it meets the others"


def test_in_a_round_two_buckets_see_each_other_whole() -> None:
    hub = Hub()
    hub.join(*range(400))
    hub.rounds(12)
    pairs = [(one, two) for one in hub.peers for two in hub.peers if _meets(hub, one, two, hub.round - 1)]
    assert len(pairs) > 400
    assert all(two in hub.met[one] and one in hub.met[two] for one, two in pairs)


def _meets(hub: Hub, one: PeerId, two: PeerId, round_: int) -> bool:
    """Return whether these buckets meet in this round. Their depths may differ."""
    depth = min(hub.peers[one].depth, hub.peers[two].depth)
    return one != two and across(address(one)[:depth], round_) == address(two)[:depth]


def test_a_look_costs_the_same_in_a_swarm_of_any_size() -> None:
    costs = []
    for count in (128, 1024):
        hub = Hub()
        hub.join(*range(count))
        hub.rounds(count.bit_length())
        costs.append(max(records for _, records in hub.read.values()))
        assert max(buckets for buckets, _ in hub.read.values()) <= 5
    assert max(costs) <= 5 * SPLIT, costs


def test_what_is_left_goes_back_into_one_bucket() -> None:
    hub = Hub()
    hub.join(*range(150))
    hub.rounds(6)
    assert min(hub.depths()) >= 1
    hub.go(*range(20, 150))
    hub.rounds(24)
    assert hub.depths() == {0}
    assert {len(met) for met in hub.met.values()} == {19}


def test_between_half_and_whole_nothing_moves() -> None:
    hub = Hub()
    hub.join(*range(70))
    hub.rounds(6)
    assert hub.depths() == {1}
    hub.go(*range(45, 70))
    hub.rounds(24)
    assert hub.depths() == {1}, "45 are too few to split and too many to merge"
    hub.join(1000)
    hub.rounds(2)
    assert hub.depths() == {1}, "a newcomer goes where the others are"


def test_in_every_round_of_a_merge_all_of_a_bucket_are_seen() -> None:
    """Half of the peers read the buckets in another order than they announce. Each live peer must still be visible to
    its neighbours."""
    hub = Hub()
    hub.join(*range(100))
    hub.rounds(8)
    left = [_peer(number) for number in range(16)]
    hub.go(*range(16, 100))
    hub.rounds(5)  # until the records of the dead have expired
    for _ in range(20):
        hub.rounds(1)
        for peer in left:
            near = {other for other in left if address(other)[0] == address(peer)[0]} - {peer}
            assert hub.met[peer] >= near
    assert hub.depths() == {0}


def test_who_moved_is_announced_where_it_was_for_a_lifetime() -> None:
    me = PeerId("me")
    buckets, crowd = DirectoryBuckets(me), {PeerId(f"p{number}") for number in range(SPLIT)}
    assert buckets.places(0.0) == [""]
    assert buckets.saw({"": crowd}, 0.0)
    assert buckets.places(1.0) == [address(me)[:1], ""]
    assert buckets.saw({address(me)[:1]: crowd}, 10.0)
    assert set(buckets.places(11.0)) == {address(me)[:2], address(me)[:1], ""}
    buckets = DirectoryBuckets(me)
    bits = address(me)
    some = set(sorted(crowd)[: SPLIT // 2])
    buckets.saw({place: some if place == bits[:3] else set() for place in places_of(me)}, 0.0)
    assert buckets.depth == 3
    assert set(buckets.places(0.0)) == {bits[:3], bits[:2]}, "it was never announced at the top"
    assert buckets.saw({bits[:3]: crowd}, 0.0)
    assert set(buckets.places(MAX_RECORD_TTL_S - 1.0)) == {bits[:4], bits[:3]}


def test_a_few_liars_do_not_lead_a_newcomer_astray() -> None:
    me = PeerId("me")
    bits, crowd = address(me), {PeerId(f"p{number}") for number in range(40)}
    liars = {PeerId(f"liar{number}") for number in range(SPLIT // 8 - 1)}
    buckets = DirectoryBuckets(me)
    buckets.saw({place: set() for place in places_of(me)} | {bits[:1]: crowd, bits[:9]: liars}, 0.0)
    assert buckets.depth == 1


def test_depth_is_bounded_whatever_is_found() -> None:
    me = PeerId("me")
    buckets, crowd = DirectoryBuckets(me), {PeerId(f"p{number}") for number in range(200)}
    buckets.saw({"": crowd}, 0.0)
    for _ in range(50):
        buckets.saw({buckets.own: crowd}, 0.0)
    assert buckets.depth == MAX_DEPTH


def test_a_group_reads_one_bucket_and_goes_back_to_it() -> None:
    buckets, crowd = DirectoryBuckets(PeerId("me")), {PeerId(f"p{number}") for number in range(100)}
    buckets.saw({"": crowd}, 0.0)
    assert buckets.depth == 1
    buckets.read_everybody()
    assert buckets.reads(7) == [""]
    assert buckets.saw({"": crowd}, 1.0)
    assert not buckets.saw({"": crowd}, 2.0)
    assert buckets.depth == 0


def test_across_is_mutual_and_the_same_at_every_depth() -> None:
    for round_ in range(50):
        for bits in ("0", "10", "0110100110"):
            assert across(across(bits, round_), round_) == bits
            assert across(bits, round_)[:1] == across(bits[:1], round_)
    assert len({turn(round_) for round_ in range(64)}) > 50
