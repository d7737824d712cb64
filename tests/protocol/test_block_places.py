import random

from peer.protocol.block_places import BlockPlaces, Placing


def full(places: BlockPlaces[str], block: str, count: int) -> None:
    for number in range(count):
        assert places.enter(f"{block}-{number}", block).admitted


def test_the_largest_block_loses_its_youngest_place_to_a_newcomer() -> None:
    places: BlockPlaces[str] = BlockPlaces(4)
    full(places, "small", 1)
    full(places, "large", 3)
    assert places.enter("new", "other") == Placing(True, "large-2")
    assert [holder in places for holder in ("large-2", "large-1", "small-0")] == [False, True, True]


def test_the_largest_block_gets_no_further_place() -> None:
    places: BlockPlaces[str] = BlockPlaces(4)
    full(places, "small", 1)
    full(places, "large", 3)
    assert places.enter("large-3", "large") == Placing(False)
    assert places.enter("small-1", "small") == Placing(True, "large-2"), "two blocks then hold two places each"
    assert places.enter("large-9", "large") == Placing(False)
    assert places.enter("small-9", "small") == Placing(False), "equal blocks take nothing from each other"


def test_one_block_may_have_all_places_while_nobody_else_wants_one() -> None:
    places: BlockPlaces[str] = BlockPlaces(8)
    full(places, "laboratory", 8)
    assert not places.enter("laboratory-8", "laboratory").admitted
    places.leave("laboratory-0")
    assert places.enter("laboratory-8", "laboratory").admitted


def test_proven_peers_keep_their_places_and_have_some_for_themselves() -> None:
    places: BlockPlaces[str] = BlockPlaces(4, reserve=2)
    full(places, "strangers", 2)
    assert not places.enter("strangers-2", "strangers").admitted, "the reserve is not for strangers"
    assert places.enter("friend", "strangers", proven=True) == Placing(True)
    assert places.enter("friend-2", "elsewhere", proven=True) == Placing(True)
    assert places.enter("friend-3", "elsewhere", proven=True) == Placing(True, "strangers-1")
    assert places.enter("friend-4", "elsewhere", proven=True) == Placing(True, "strangers-0")
    assert not places.enter("friend-5", "elsewhere", proven=True).admitted, "proven peers do not push each other out"
    assert len(places) == 4


def test_who_turns_out_to_be_proven_is_not_pushed_out() -> None:
    places: BlockPlaces[str] = BlockPlaces(2)
    full(places, "one", 2)
    places.prove("one-1")
    assert places.enter("new", "other") == Placing(False), "one stranger of each block: nobody holds more"
    places.prove("nobody")
    assert "nobody" not in places
    assert places.enter("one-1", "one") == Placing(True)


def test_one_block_never_holds_more_than_its_share_while_others_want_places() -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    places: BlockPlaces[int] = BlockPlaces(16)
    blocks: dict[int, str] = {}
    for number in range(400):
        block = "attacker" if rng.random() < 0.9 else f"home-{rng.randrange(5)}"
        entry = places.enter(number, block)
        if entry.admitted:
            blocks[number] = block
    held = [blocks[number] for number in range(400) if number in places]
    assert len(held) == 16
    assert held.count("attacker") <= 1 + max(held.count(f"home-{home}") for home in range(5)), f"seed {seed}"


def test_within_a_block_the_host_that_holds_most_makes_room_for_another_host() -> None:
    places: BlockPlaces[str] = BlockPlaces(4)
    for number in range(4):
        assert places.enter(f"greedy-{number}", "lan", host="192.0.2.1").admitted
    assert places.enter("greedy-4", "lan", host="192.0.2.1") == Placing(False)
    assert places.enter("nameless", "lan") == Placing(False)
    assert places.enter("a", "lan", host="192.0.2.2") == Placing(True, "greedy-3")
    assert places.enter("b", "lan", host="192.0.2.2") == Placing(True, "greedy-2"), "both hosts then hold two"
    assert places.enter("c", "lan", host="192.0.2.2") == Placing(False)
    assert places.enter("far", "other", host="198.51.100.1").admitted, "blocks come first"
