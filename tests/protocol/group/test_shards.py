from __future__ import annotations

import itertools
from collections import Counter

import pytest

from peer.protocol.group.shards import ALIGN, RELAYED_SHARE, check_named, cut, edges, owner_reach
from peer.protocol.messages import PeerId, Reach

OWNERS = [PeerId(f"p{number}") for number in range(7)]


@pytest.mark.parametrize("elements", [1, 127, 128, 129, 895, 896, 897, 100_000, 123_457])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_shards_cover_the_fragment_once_on_block_boundaries(elements: int, count: int) -> None:
    shards = cut(b"roster", OWNERS[:count], elements)
    assert shards[0].start == 0
    assert shards[-1].end == elements
    assert all(one.end == other.start for one, other in itertools.pairwise(shards))
    assert all(shard.start % ALIGN == 0 and shard.elements > 0 for shard in shards)
    assert len(shards) == min(count, -(-elements // ALIGN))
    blocks = [-(-shard.elements // ALIGN) for shard in shards]
    assert max(blocks) - min(blocks) <= 1
    assert [shard.index for shard in shards] == list(range(len(shards)))


def test_nobody_owns_two_and_the_roster_decides() -> None:
    first = Counter[PeerId]()
    for number in range(300):
        shards = cut(b"%d" % number, OWNERS, 10_000)
        assert {shard.owner for shard in shards} == set(OWNERS)
        first[shards[0].owner] += 1
    assert min(first.values()) > 20
    assert cut(b"x", OWNERS, 10_000) == cut(b"x", OWNERS[::-1], 10_000)


def test_a_larger_block_is_kept() -> None:
    assert all(shard.start % 4096 == 0 for shard in cut(b"x", OWNERS, 50_000, 4096))


@pytest.mark.parametrize("owners", [1, 2, 3, 5, 8, 16])
def test_an_edge_inside_a_whole_span_moves_to_its_nearer_end(owners: int) -> None:
    """Outside of whole spans a fragment can be divided anywhere."""
    sizes = [1000, 24, 700, 700, 24, 700, 700, 24]
    ends = list(itertools.accumulate(sizes))
    whole = [(end - size, end) for size, end in zip(sizes, ends, strict=True)][1:]
    found = edges(owners, ends[-1], whole=whole)
    equal = edges(owners, ends[-1])
    assert found[0] == 0
    assert found[-1] == ends[-1]
    assert found == sorted(set(found))
    assert len(found) <= len(equal)
    for edge in found:
        assert edge in ends or edge % ALIGN == 0
        assert not any(start < edge < end for start, end in whole)
    assert {edge for edge in equal if edge <= 1000} <= set(found)
    most = max(end - start for start, end in itertools.pairwise(equal)) + 700
    assert max(end - start for start, end in itertools.pairwise(found)) <= most
    shards = cut(b"roster", OWNERS[:owners], ends[-1], whole=whole)
    assert [shard.start for shard in shards] == edges(min(owners, 7), ends[-1], whole=whole)[:-1]


def test_a_fragment_of_few_whole_spans_has_fewer_shards_than_owners() -> None:
    assert edges(7, 3000, whole=[(0, 1400), (1400, 3000)]) == [0, 1400, 3000]
    assert edges(7, 3000, whole=[(0, 3000)]) == [0, 3000]


@pytest.mark.parametrize("named", [[1, 0], [0, 0], [3], [-1]])
def test_impossible_contributors_are_refused(named: list[int]) -> None:
    with pytest.raises(ValueError, match=r"."):
        check_named(named, 3)


def test_possible_contributors_are_taken() -> None:
    assert check_named([0, 2], 3) == (0, 2)
    assert check_named([], 3) == ()


@pytest.mark.parametrize(
    ("reach", "rate", "says"),
    [
        (Reach.DIRECT, 0.0, Reach.DIRECT),
        (Reach.NONE, 1e9, Reach.NONE),
        (Reach.RELAYED, 0.0, Reach.RELAYED),
        (Reach.RELAYED, 999.0, Reach.RELAYED),
        (Reach.RELAYED, 1000.0, Reach.DIRECT),
    ],
)
def test_a_relayed_member_owns_a_shard_beside_the_others_only_if_its_path_is_fast_enough(
    reach: Reach, rate: float, says: Reach
) -> None:
    seconds, nbytes = 60.0, int(RELAYED_SHARE * 1000.0 * 60.0)
    assert owner_reach(reach, rate, nbytes, seconds) is says
