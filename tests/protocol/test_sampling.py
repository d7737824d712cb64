"""Windows are drawn without replacement, in an order that everyone can reproduce."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.protocol.sampling import (
    START,
    Cursor,
    NothingToDraw,
    Sampler,
    shard_order,
    window_order,
    windows_in,
)

CONTEXT = 4
SHARDS_0 = [1, 6, 7, 3, 2, 4, 5, 0]
SHARDS_1 = [2, 7, 3, 4, 5, 1, 6, 0]
WINDOWS_3 = [2, 5, 9, 1, 7, 3, 8, 4, 6, 0]
WINDOWS_OTHER = [6, 3, 9, 2, 0, 5, 8, 7, 4, 1]
BATCH = [(3, 2), (3, 1), (3, 0), (2, 0), (2, 1), (0, 3), (0, 0), (0, 1), (0, 2)]
sizes = st.lists(st.integers(1, 60), min_size=1, max_size=8)


def always(shard: int) -> bool:
    return True


def every_window(tokens: list[int]) -> list[tuple[int, int]]:
    return [(shard, window) for shard, count in enumerate(tokens) for window in range(windows_in(count, CONTEXT))]


@pytest.mark.parametrize(("tokens", "windows"), [(0, 0), (1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (2**22, 2**20 - 1)])
def test_a_window_needs_one_token_more_than_the_context(tokens: int, windows: int) -> None:
    assert windows_in(tokens, CONTEXT) == windows


def test_the_orders_are_those_of_every_version() -> None:
    """Frozen: with another order, the data of recorded runs could not be reproduced."""
    assert shard_order(7, "12D3KooWpeer", 0, 8).tolist() == SHARDS_0
    assert shard_order(7, "12D3KooWpeer", 1, 8).tolist() == SHARDS_1
    assert window_order(7, "12D3KooWpeer", 0, 3, 10).tolist() == WINDOWS_3
    assert window_order(7, "12D3KooWother", 0, 3, 10).tolist() == WINDOWS_OTHER
    assert Sampler(7, "12D3KooWpeer", CONTEXT, [20, 3, 9, 14]).draw(START, 9, always).windows == BATCH


@given(sizes, st.integers(1, 40), st.integers(0, 3))
def test_an_epoch_has_every_window_once(tokens: list[int], batch: int, epochs: int) -> None:
    expected = every_window(tokens)
    sampler, cursor, drawn = Sampler(1, "peer", CONTEXT, tokens), START, []
    assert sampler.windows == len(expected)
    if not expected:
        with pytest.raises(NothingToDraw):
            sampler.draw(START, batch, always)
        return
    while len(drawn) < (epochs + 1) * len(expected):
        made = sampler.draw(cursor, batch, always)
        assert len(made.windows) == batch
        assert made.skipped == []
        assert made.cursor > cursor
        assert sampler.replay(cursor, batch, []) == made
        drawn += made.windows
        cursor = made.cursor
    for epoch in range(epochs + 1):
        assert sorted(drawn[epoch * len(expected) : (epoch + 1) * len(expected)]) == expected


@given(sizes, st.integers(1, 40), st.data())
def test_skipped_shards_are_told_and_the_rest_comes_once(tokens: list[int], batch: int, data: st.DataObject) -> None:
    absent = data.draw(st.sets(st.sampled_from(range(len(tokens)))))
    expected = [(shard, window) for shard, window in every_window(tokens) if shard not in absent]
    sampler, cursor = Sampler(2, "peer", CONTEXT, tokens), START
    drawn: list[tuple[int, int]] = []
    skipped: list[tuple[int, int]] = []
    if not expected:
        with pytest.raises(NothingToDraw):
            sampler.draw(START, batch, lambda shard: shard not in absent)
        return
    while len(drawn) < len(expected):
        made = sampler.draw(cursor, batch, lambda shard: shard not in absent)
        assert Sampler(2, "peer", CONTEXT, tokens).replay(cursor, batch, made.skipped) == made
        drawn += made.windows
        skipped += made.skipped
        cursor = made.cursor
    assert sorted(drawn[: len(expected)]) == expected
    order = shard_order(2, "peer", 0, len(tokens)).tolist()
    told = {order[place] for epoch, place in skipped if epoch == 0}
    possible = {shard for shard in absent if windows_in(tokens[shard], CONTEXT)}
    assert told <= possible
    if cursor.epoch > 0:
        assert told == possible
    assert len(set(skipped)) == len(skipped)


def test_the_rest_of_a_shard_that_is_lost_is_skipped() -> None:
    sampler = Sampler(3, "peer", CONTEXT, [41, 41, 41])
    first = sampler.draw(START, 4, always)
    lost = first.windows[0][0]
    second = sampler.draw(first.cursor, 4, lambda shard: shard != lost)
    assert second.skipped == [(0, 0)]
    assert lost not in {shard for shard, _ in second.windows}
    assert second.cursor == Cursor(0, 1, 4)


def test_one_usable_shard_is_found_wherever_the_cursor_is() -> None:
    sampler = Sampler(4, "peer", CONTEXT, [9] * 10)
    for place in range(10):
        for one in range(10):
            made = sampler.draw(Cursor(0, place), 3, {one}.__contains__)
            assert {shard for shard, _ in made.windows} == {one}


def test_a_batch_may_cross_shards_and_epochs() -> None:
    made = Sampler(5, "peer", CONTEXT, [9, 5]).draw(START, 7, always)
    assert sorted(made.windows[:3]) == sorted(made.windows[3:6]) == [(0, 0), (0, 1), (1, 0)]
    assert made.cursor.epoch == 2


@given(sizes, st.integers(0, 40), st.integers(1, 5))
def test_upcoming_names_the_shards_in_the_order_of_reading(tokens: list[int], drawn: int, wanted: int) -> None:
    sampler, windows = Sampler(6, "peer", CONTEXT, tokens), every_window(tokens)
    if not windows:
        assert sampler.upcoming(START, wanted) == []
        return
    cursor = sampler.draw(START, drawn, always).cursor
    read = [shard for shard, _ in sampler.draw(cursor, 2 * len(windows), always).windows]
    expected = list(dict.fromkeys(read))[:wanted]
    assert sampler.upcoming(cursor, wanted) == expected


def test_peers_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(window_order(seed, peer, epoch, 0, 50)) for seed in (1, 2) for peer in "ab" for epoch in (0, 1)}
    assert len(orders) == 8
