import dataclasses
import math
from concurrent.futures import Future

import pytest
import torch
from blake3 import blake3

from peer.errors import BadPayload, PartnerRefused
from peer.outer.state import OuterState
from peer.protocol.messages import StateIndex
from peer.protocol.model import layout as layouts
from peer.protocol.model.layout import Layout, TensorSpec
from peer.state.snapshot import (
    HOLD_S,
    SnapshotCache,
    StateSnapshot,
    check_index,
    check_piece,
    copy_of,
    describe_copy_room,
    mark_of,
)

CUT = [(0, 2, 600), (2, 1, 1000), (2, 1, 1000), (2, 1, 400), (3, 1, 28)]


@pytest.fixture
def layout(monkeypatch) -> Layout:
    """Return a layout of five pieces: two small tensors in one, a large tensor in three, a small tensor in one."""
    monkeypatch.setattr(layouts, "PIECE_BYTES", 1000)
    return Layout.whole(
        [TensorSpec("a", (10, 10)), TensorSpec("b", (50,)), TensorSpec("c", (3, 200)), TensorSpec("d", (7,))]
    )


def params_of(layout: Layout, seed: int = 0) -> torch.Tensor:
    return torch.randn(layout.elements, generator=torch.Generator().manual_seed(seed))


def test_pieces_are_the_bytes_of_the_layout(layout):
    params = params_of(layout)
    snapshot = StateSnapshot(params, layout, 3)
    assert [(p.first, p.count, p.nbytes) for p in snapshot.index.pieces] == CUT
    whole = b"".join(bytes(snapshot.piece(i)) for i in range(5))
    assert whole == params.numpy().tobytes()
    assert all(blake3(snapshot.piece(i)).digest() == p.digest for i, p in enumerate(snapshot.index.pieces))
    assert (snapshot.index.round, snapshot.index.layout_digest) == (3, layout.digest())
    assert snapshot.piece(5) is None
    assert snapshot.piece(-1) is None


def test_a_snapshot_does_not_move_with_the_params(layout):
    params = params_of(layout)
    before = params.numpy().tobytes()
    snapshot = StateSnapshot(params, layout, 0)
    params += 1
    view = snapshot.piece(0)
    assert bytes(view) == before[:600]
    assert view.readonly


def replaced(**changes):
    return lambda index: dataclasses.replace(index, **changes)


def first_piece(**changes):
    return lambda index: dataclasses.replace(
        index, pieces=(dataclasses.replace(index.pieces[0], **changes), *index.pieces[1:])
    )


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (replaced(layout_digest=b"x" * 32), "layout"),
        (replaced(pieces=()), "index"),
        (lambda index: dataclasses.replace(index, pieces=index.pieces[:-1]), "index"),
        (lambda index: dataclasses.replace(index, pieces=index.pieces * 3), "index"),
        (first_piece(nbytes=2**60), "index"),
        (first_piece(nbytes=596), "index"),
        (first_piece(first=1), "index"),
        (first_piece(count=3), "index"),
        (first_piece(digest=b""), "index"),
        (replaced(round=-1), "index"),
        (replaced(round=2**60), "index"),
        (replaced(snapshot="x" * 1000), "index"),
        (replaced(snapshot=""), "index"),
    ],
)
def test_a_wrong_index_is_refused(layout, spoil, code):
    index = StateSnapshot(params_of(layout), layout, 5).index
    check_index(index, layout)
    with pytest.raises(BadPayload) as refusal:
        check_index(spoil(index), layout)
    assert refusal.value.code == code


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda data: data[:-1], "length"),
        (lambda data: data + b"x", "length"),
        (lambda data: bytes([data[0] ^ 1]) + data[1:], "digest"),
    ],
)
def test_wrong_bytes_are_refused(layout, damage, code):
    snapshot = StateSnapshot(params_of(layout), layout, 5)
    piece, data = snapshot.index.pieces[1], bytes(snapshot.piece(1))
    check_piece(data, piece, 1)
    with pytest.raises(BadPayload) as refusal:
        check_piece(damage(data), piece, 1)
    assert refusal.value.code == code


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 70, 149])
def test_values_that_are_not_finite_are_refused(layout, value, at):
    params = params_of(layout)
    params[at] = value
    snapshot = StateSnapshot(params, layout, 5)
    with pytest.raises(BadPayload) as refusal:
        check_piece(bytes(snapshot.piece(0)), snapshot.index.pieces[0], 0)
    assert refusal.value.code == "not_finite"


class Shelved:
    """A `SnapshotCache` over params that change with each copy, with a clock that the test sets."""

    def __init__(self, layout: Layout, keep: int = 2) -> None:
        self.t, self.made = 0.0, 0
        self.shelf = SnapshotCache(lambda: self.make(layout), lambda: self.t, max_age_s=30, keep=keep)

    def make(self, layout: Layout) -> StateSnapshot:
        self.made += 1
        return StateSnapshot(params_of(layout, self.made), layout, self.made)

    def at(self, t: float) -> StateIndex:
        self.t = t
        return self.shelf.on_state()


def test_a_fresh_snapshot_follows_an_old_one_and_the_former_stays(layout):
    shelved = Shelved(layout)
    first = shelved.at(0)
    assert shelved.at(30) is first
    second = shelved.at(31)
    assert (first.round, second.round, first.snapshot != second.snapshot) == (1, 2, True)
    assert bytes(shelved.shelf.on_piece(first.snapshot, 0)) == params_of(layout, 1).numpy().tobytes()[:600]
    assert bytes(shelved.shelf.on_piece(second.snapshot, 0)) == params_of(layout, 2).numpy().tobytes()[:600]
    assert shelved.shelf.on_piece("unknown", 0) is None
    assert shelved.shelf.on_piece(first.snapshot, 99) is None


def test_a_snapshot_of_long_ago_is_not_offered_while_a_fresh_one_is_made(layout):
    """Fault: the first joiner after hours gets the old snapshot, because a thread still makes the new one."""
    now, making = [0.0], []
    shelf = SnapshotCache(
        lambda: StateSnapshot(params_of(layout, len(making)), layout, len(making)),
        lambda: now[0],
        lambda work: making.append((Future(), work)) or making[-1][0],
        max_age_s=30,
    )

    def made() -> None:
        future, work = making[-1]
        future.set_result(work())

    assert shelf.on_state() is None
    made()
    assert shelf.on_state().round == 1
    now[0] = 3600.0
    assert shelf.on_state() is None
    made()
    assert shelf.on_state().round == 2


def test_memory_is_bounded(layout):
    shelved = Shelved(layout)
    seen = [shelved.at(31.0 * n) for n in range(10)]
    held = [index for index in seen if shelved.shelf.on_piece(index.snapshot, 0) is not None]
    assert held == seen[-2:]


def test_a_slow_joiner_is_not_starved_by_later_ones_but_not_for_ever(layout):
    shelved = Shelved(layout)
    slow = shelved.at(0)
    other = shelved.at(31)
    for t in range(40, int(HOLD_S), 10):
        offered = shelved.at(t)
        assert offered is other
        assert shelved.shelf.on_piece(slow.snapshot, 0) is not None
        assert shelved.shelf.on_piece(other.snapshot, 0) is not None
    assert shelved.made == 2
    assert shelved.at(HOLD_S + 1).round == 3
    assert shelved.shelf.on_piece(slow.snapshot, 0) is None


def test_a_shelf_of_one(layout):
    shelved = Shelved(layout, keep=1)
    assert [shelved.at(t).round for t in (0, 10, 31, 62)] == [1, 1, 2, 3]


# -- groups: one state on all donors ---------------------------------------------------------------------------------


def group_state(layout: Layout, seed: int = 0) -> OuterState:
    return OuterState(layout, params_of(layout, seed), params_of(layout, seed + 100))


def test_members_of_one_state_offer_one_snapshot(layout):
    one, other = (copy_of(group_state(layout), round_, momentum=True).index for round_ in (7, 8))
    assert one.snapshot == other.snapshot == mark_of(one.pieces)
    assert one.pieces == other.pieces
    moved = group_state(layout)
    moved.momentum[0] += 1
    assert copy_of(moved, 7, momentum=True).index.snapshot != one.snapshot


def test_momentum_follows_the_params_and_is_cut_alike(layout):
    outer = group_state(layout)
    snapshot = copy_of(outer, 7, momentum=True)
    assert [(p.first, p.count, p.nbytes) for p in snapshot.index.pieces] == CUT + CUT
    whole = b"".join(bytes(snapshot.piece(i)) for i in range(10))
    assert whole == outer.params.numpy().tobytes() + outer.momentum.numpy().tobytes()
    check_index(snapshot.index, layout, momentum=True)
    with pytest.raises(BadPayload):
        check_index(snapshot.index, layout, momentum=False)
    with pytest.raises(BadPayload):
        check_index(copy_of(outer, 7, momentum=False).index, layout, momentum=True)


def test_no_copy_is_made_across_an_outer_step(layout, monkeypatch):
    outer = group_state(layout)
    with outer.stepping():
        assert copy_of(outer, 0, momentum=True) is None
    real = StateSnapshot.__init__

    def step_meanwhile(self, *args):
        with outer.stepping():
            outer.params += 1
        real(self, *args)

    monkeypatch.setattr(StateSnapshot, "__init__", step_meanwhile)
    assert copy_of(outer, 0, momentum=True) is None


def test_a_copy_lies_in_a_file_without_a_name(layout, tmp_path):
    outer = group_state(layout)
    snapshot = copy_of(outer, 7, momentum=True, folder=tmp_path)
    before = outer.params.numpy().tobytes()[:600]
    outer.params += 1
    assert bytes(snapshot.piece(0)) == before
    assert snapshot.piece(0).readonly
    assert not list(tmp_path.iterdir())
    assert "6.06 kB each, at most 2 at once" in describe_copy_room(tmp_path, layout.elements, momentum=True)
    assert "joiners may have to ask others" in describe_copy_room(tmp_path, 10**15, momentum=True)


def test_a_copy_that_cannot_be_written_is_reported_to_the_joiner_and_tried_again(layout, tmp_path):
    outer, room = group_state(layout), [tmp_path / "nowhere", tmp_path]
    shelf = SnapshotCache(lambda: copy_of(outer, 1, momentum=True, folder=room.pop(0)), lambda: 0.0)
    with pytest.raises(PartnerRefused, match="cannot write a copy of its state: No such file"):
        shelf.on_state()
    assert shelf.on_state() is not None


class Slow:
    """A `SnapshotCache` over a group's state, where the test decides when a copy is complete."""

    def __init__(self, layout: Layout) -> None:
        self.outer, self.t, self.begun = group_state(layout), 0.0, []
        self.shelf = SnapshotCache(lambda: copy_of(self.outer, 1, momentum=True), lambda: self.t, self.start)

    def start(self, work):
        self.begun.append((work, Future()))
        return self.begun[-1][1]

    def finish(self) -> None:
        work, future = self.begun[-1]
        future.set_result(work())


def test_a_copy_is_made_beside_the_loop_and_asked_for_again(layout):
    slow = Slow(layout)
    assert slow.shelf.on_state() is None
    assert slow.shelf.on_state() is None
    assert len(slow.begun) == 1, "one copy at a time"
    slow.finish()
    first = slow.shelf.on_state()
    assert bytes(slow.shelf.on_piece(first.snapshot, 0)) == slow.outer.params.numpy().tobytes()[:600]


def test_fresh_is_what_the_state_is_now_and_wanted_what_it_was(layout):
    slow = Slow(layout)
    slow.shelf.on_state()
    slow.finish()
    old = slow.shelf.on_state()
    slow.outer.params += 1
    assert slow.shelf.on_state(fresh=True) is old, "not oftener than once a second"
    slow.t = 5.0
    assert slow.shelf.on_state(fresh=True) is None
    slow.finish()
    new = slow.shelf.on_state(fresh=True)
    assert new.snapshot != old.snapshot
    assert slow.shelf.on_state() is new
    assert slow.shelf.on_state(wanted=old.snapshot) is old
    assert slow.shelf.on_state(wanted="gone") is new


def test_a_fresh_copy_of_the_same_state_is_the_same_snapshot(layout):
    slow = Slow(layout)
    slow.shelf.on_state()
    slow.finish()
    old = slow.shelf.on_state()
    slow.t = 5.0
    slow.shelf.on_state(fresh=True)
    slow.finish()
    assert slow.shelf.on_state().snapshot == old.snapshot
    assert slow.shelf.on_piece(old.snapshot, 9) is not None


def test_a_copy_that_a_step_spoilt_is_made_again(layout):
    slow = Slow(layout)
    slow.shelf.on_state()
    with slow.outer.stepping():
        slow.finish()
    assert slow.shelf.on_state() is None
    assert len(slow.begun) == 2


def test_pieces_grow_with_the_state():
    small = Layout.whole([TensorSpec(f"t{n}", (1000,)) for n in range(200)])
    assert [nbytes for _, _, nbytes in small.pieces()] == [65 * 4000, 65 * 4000, 65 * 4000, 5 * 4000]
    large = Layout.whole([TensorSpec("embedding", (2**25,)), TensorSpec("rest", (2**20,))])
    sizes = [nbytes for _, _, nbytes in large.pieces()]
    assert sum(sizes) == 4 * large.elements
    assert max(sizes) <= 4 * large.elements / 128
    huge = Layout.whole([TensorSpec("t", (2**32,))])
    assert {nbytes for _, _, nbytes in huge.pieces()} == {2**24}
