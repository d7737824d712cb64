import asyncio
import dataclasses
import math

import pytest
import torch
from blake3 import blake3

from peer.errors import BadPayload, PartnerLost, PartnerRefused
from peer.protocol import layout as layouts
from peer.protocol.layout import Layout, TensorSpec
from peer.protocol.messages import PeerId, PeerRecord, RunId, StateIndex, Status
from peer.state.snapshot import HOLD_S, SnapshotShelf, StateSnapshot, TransferDeadline, fetch_state

DONOR = PeerRecord(PeerId("d"), RunId(b"r" * 32), (), True, 1, 1, 0, 0.0, Status.TRAINING, 0.0, 60.0)


@pytest.fixture
def layout(monkeypatch) -> Layout:
    """Three pieces: two small tensors together, one larger than a piece, one small."""
    monkeypatch.setattr(layouts, "PIECE_BYTES", 1000)
    return Layout.whole(
        [TensorSpec("a", (10, 10)), TensorSpec("b", (50,)), TensorSpec("c", (3, 200)), TensorSpec("d", (7,))]
    )


def params_of(layout: Layout, seed: int = 0) -> torch.Tensor:
    return torch.randn(layout.elements, generator=torch.Generator().manual_seed(seed))


class Donor:
    """A transport whose other side is a shelf; `spoil` changes what it says."""

    def __init__(self, shelf: SnapshotShelf, spoil=lambda index: index, damage=lambda number, data: data) -> None:
        self.shelf = shelf
        self.spoil = spoil
        self.damage = damage
        self.fetched: list[int] = []
        self.timeouts: list[float] = []

    async def describe_state(self, donor: PeerRecord, timeout_s: float) -> StateIndex:
        return self.spoil(self.shelf.on_state())

    async def fetch_piece(self, donor: PeerRecord, index: StateIndex, piece: int, timeout_s: float) -> bytes:
        self.fetched.append(piece)
        self.timeouts.append(timeout_s)
        data = self.shelf.on_piece(index.snapshot, piece)
        if data is None:
            raise PartnerRefused("gone", "the snapshot is gone")
        return self.damage(piece, bytes(data))


def shelf_of(layout: Layout, params: torch.Tensor, round_: int = 5) -> SnapshotShelf:
    return SnapshotShelf(lambda: (params, round_), layout, lambda: 0.0)


def test_pieces_are_the_bytes_of_the_layout(layout):
    params = params_of(layout)
    snapshot = StateSnapshot(params, layout, 3)
    assert [(p.first, p.count, p.nbytes) for p in snapshot.index.pieces] == [(0, 2, 600), (2, 1, 2400), (3, 1, 28)]
    whole = b"".join(bytes(snapshot.piece(i)) for i in range(3))
    assert whole == params.numpy().tobytes()
    assert all(blake3(snapshot.piece(i)).digest() == p.digest for i, p in enumerate(snapshot.index.pieces))
    assert (snapshot.index.round, snapshot.index.layout_digest) == (3, layout.digest())
    assert snapshot.piece(3) is None
    assert snapshot.piece(-1) is None


def test_a_snapshot_does_not_move_with_the_params(layout):
    params = params_of(layout)
    before = params.numpy().tobytes()
    snapshot = StateSnapshot(params, layout, 0)
    params += 1
    view = snapshot.piece(0)
    assert bytes(view) == before[:600]
    assert view.readonly


def test_fetch_gives_the_state_bit_for_bit(layout):
    params, seen = params_of(layout), []
    donor = Donor(shelf_of(layout, params))
    got, round_ = asyncio.run(fetch_state(donor, DONOR, layout, progress=lambda *at: seen.append(at)))
    assert torch.equal(got, params)
    assert got.dtype == torch.float32
    assert got.is_contiguous()
    assert round_ == 5
    assert seen == [(600, 3028), (3000, 3028), (3028, 3028)]
    got += 1  # ours, writable


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
        (lambda index: dataclasses.replace(index, pieces=index.pieces * 2), "index"),
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
def test_a_wrong_index_is_refused_before_a_byte_is_fetched(layout, spoil, code):
    donor = Donor(shelf_of(layout, params_of(layout)), spoil)
    with pytest.raises(BadPayload) as refusal:
        asyncio.run(fetch_state(donor, DONOR, layout))
    assert refusal.value.code == code
    assert donor.fetched == []


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda number, data: data[:-1] if number == 1 else data, "length"),
        (lambda number, data: data + b"x" if number == 2 else data, "length"),
        (lambda number, data: bytes([data[0] ^ 1]) + data[1:] if number == 1 else data, "digest"),
    ],
)
def test_wrong_bytes_are_refused(layout, damage, code):
    donor = Donor(shelf_of(layout, params_of(layout)), damage=damage)
    with pytest.raises(BadPayload) as refusal:
        asyncio.run(fetch_state(donor, DONOR, layout))
    assert refusal.value.code == code


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 400, -1])
def test_values_that_are_not_finite_are_refused(layout, value, at):
    params = params_of(layout)
    params[at] = value
    with pytest.raises(BadPayload) as refusal:
        asyncio.run(fetch_state(Donor(shelf_of(layout, params)), DONOR, layout))
    assert refusal.value.code == "not_finite"


@pytest.mark.parametrize("error", [PartnerLost("silent"), PartnerRefused("busy", "too many joiners")])
def test_a_lost_or_refusing_donor_is_told_upward(layout, error):
    def raises(number, data):
        raise error

    with pytest.raises(type(error)):
        asyncio.run(fetch_state(Donor(shelf_of(layout, params_of(layout)), damage=raises), DONOR, layout))


def test_deadlines_come_from_the_slowest_measured_rate():
    deadline = TransferDeadline(slack_s=10, factor=4, floor=1000, ceiling=50_000)
    assert deadline.seconds(0) == 10
    assert deadline.seconds(1000) == 14
    deadline.observe(10_000, 1.0)
    assert deadline.seconds(10_000) == 14
    deadline.observe(10_000, 4.0)
    assert deadline.seconds(10_000) == 26
    deadline.observe(10_000, 0.0)
    assert deadline.seconds(10_000) == 26
    burst = TransferDeadline(slack_s=0, factor=4, ceiling=50_000)
    burst.observe(10**9, 1e-3)
    assert burst.seconds(50_000) == 4


def test_every_fetch_has_a_deadline(layout):
    donor = Donor(shelf_of(layout, params_of(layout)))
    asyncio.run(fetch_state(donor, DONOR, layout, TransferDeadline(slack_s=3, floor=600, ceiling=600)))
    assert donor.timeouts == [3 + 4 * 1, 3 + 4 * 4, 3 + 4 * 28 / 600]


class Shelved:
    """A shelf over params that change at each copy, and a clock by hand."""

    def __init__(self, layout: Layout, keep: int = 2) -> None:
        self.t, self.made = 0.0, 0
        self.shelf = SnapshotShelf(lambda: self.make(layout), layout, lambda: self.t, max_age_s=30, keep=keep)

    def make(self, layout: Layout) -> tuple[torch.Tensor, int]:
        self.made += 1
        return params_of(layout, self.made), self.made

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
