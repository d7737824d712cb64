import asyncio
import functools
import gc
from collections import Counter

import numpy as np
import pytest
import torch

from peer.errors import BadPayload, PartnerLost, PartnerRefused
from peer.lab.sim.virtual_clock import run_virtual
from peer.outer.state import OuterState
from peer.protocol.messages import PeerId, PeerRecord, RunId, StateIndex, Status
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.policy.donors import DonorRates
from peer.protocol.wire.payload import Arrived
from peer.state.snapshot import StateSnapshot, copy_of
from peer.state.transfer.download import Download, Outcome, TransferFlow
from peer.state.transfer.pieces import PieceStore
from peer.state.transfer.scheduler import PieceScheduler


def virtually(test):
    @functools.wraps(test)
    def run() -> None:
        run_virtual(test())

    return run


A, B, C = (PeerId(name) for name in "abc")
PIECE, PARTS = 2**18, 64
LAYOUT = Layout.whole([TensorSpec(f"t{n}", (PIECE // 4,)) for n in range(20)])
STATE = OuterState(LAYOUT, torch.randn(LAYOUT.elements), torch.randn(LAYOUT.elements))


# -- the scheduler -----------------------------------------------------------------------------------------------------


def rates_of(**given: float) -> DonorRates:
    rates = DonorRates()
    for peer, rate in given.items():
        rates.observe(PeerId(peer), int(rate * 10), 10.0)
    return rates


def test_every_piece_is_given_out_once():
    scheduler = PieceScheduler([10] * 5, {1}, DonorRates())
    assert [scheduler.assign(peer, 0.0) for peer in (A, B, A, B, A)] == [0, 2, 3, 4, None]
    for piece in (0, 2, 3):
        scheduler.complete_piece(piece)
    assert not scheduler.complete
    scheduler.complete_piece(4)
    assert scheduler.complete
    assert scheduler.raced == 0


def test_what_a_lost_donor_had_is_first_in_line():
    scheduler = PieceScheduler([10] * 4, (), DonorRates())
    assert [scheduler.assign(A, 0.0), scheduler.assign(B, 0.0)] == [0, 1]
    scheduler.unassign(A, 0)
    assert scheduler.assign(B, 1.0) == 0


def test_at_the_end_an_idle_fast_donor_races_the_piece_that_would_be_last():
    scheduler = PieceScheduler([1000] * 3, (), rates_of(a=1000, b=10, c=200))
    assert [scheduler.assign(peer, 0.0) for peer in (A, C, B)] == [0, 1, 2]
    scheduler.complete_piece(0)
    assert scheduler.assign(A, 1.0) == 2, "100 s at the slow one's rate, 5 s at the other's"
    assert scheduler.raced == 1000
    assert scheduler.assign(C, 1.0) is None, "raced already, and its own"
    assert set(scheduler.complete_piece(2)) == {A, B}
    scheduler.unassign(B, 2)
    scheduler.complete_piece(1)
    assert scheduler.complete


def test_a_slower_donor_does_not_race_and_neither_does_an_unmeasured_one():
    scheduler = PieceScheduler([1000] * 2, (), rates_of(a=1000, b=900))
    assert [scheduler.assign(A, 0.0), scheduler.assign(B, 0.0)] == [0, 1]
    scheduler.complete_piece(1)
    assert scheduler.assign(B, 0.5) is None
    assert scheduler.assign(C, 0.5) is None


def test_a_donor_long_past_its_time_is_raced():
    scheduler = PieceScheduler([1000] * 2, (), rates_of(a=1000, b=1000))
    assert [scheduler.assign(A, 0.0), scheduler.assign(B, 0.0)] == [0, 1]
    scheduler.complete_piece(0)
    assert scheduler.assign(A, 2.0) is None
    assert scheduler.assign(A, 5.0) == 1


def test_bytes_on_their_way_tell_more_than_earlier_pieces():
    scheduler = PieceScheduler([1000] * 2, (), rates_of(a=1000, b=1000))
    assert [scheduler.assign(A, 0.0), scheduler.assign(B, 0.0)] == [0, 1]
    scheduler.complete_piece(0)
    scheduler.count_arrived(B, 1, 10)
    assert scheduler.assign(A, 1.5) is None, "at its former rate it would be there in a moment"
    scheduler.count_arrived(B, 1, 10)
    assert scheduler.assign(A, 2.5) == 1, "98 % to come at 8 bytes a second"


def test_an_unmeasured_donor_races_one_that_was_seen_to_be_slow():
    scheduler = PieceScheduler([1000] * 2, (), rates_of(b=10))
    assert [scheduler.assign(B, 0.0), scheduler.assign(A, 0.0)] == [0, 1]
    scheduler.complete_piece(1)
    assert scheduler.assign(C, 1.0) is None, "too early to tell"
    scheduler.count_arrived(B, 0, 20)
    assert scheduler.assign(C, 2.0) == 0, "98 s to come"


def test_what_is_under_way_is_counted_once_however_many_race_it():
    scheduler = PieceScheduler([1000] * 2, (), rates_of(a=500, b=10))
    assert [scheduler.assign(A, 0.0), scheduler.assign(B, 0.0)] == [0, 1]
    scheduler.count_arrived(A, 0, 700)
    scheduler.complete_piece(0)
    scheduler.count_arrived(A, 0, 300)
    scheduler.count_arrived(B, 1, 50)
    assert scheduler.assign(A, 4.0) == 1
    scheduler.count_arrived(A, 1, 600)
    assert scheduler.arriving == 600
    assert scheduler.rates(5.0) == {A: 500.0, B: 10.0}
    assert scheduler.rates(8.0) == {A: 150.0, B: 6.25}
    scheduler.unassign(A, 1)
    assert scheduler.arriving == 50


def test_deadlines_come_from_each_donors_own_rate():
    rates = rates_of(a=1_000_000, b=1000)
    assert rates.deadline_s(A, 1_000_000) == pytest.approx(4 + 4 * 1)
    assert rates.deadline_s(B, 1_000_000) == pytest.approx(4 + 4 * 1000)
    rates.failed(A)
    assert rates.of(A) == pytest.approx(500_000)
    rates.observe(A, 1_500_000, 1.0)
    assert rates.of(A) == pytest.approx(1_000_000)


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ({}, "0 donors"),
        ({A: 0.0}, "1 donor"),
        ({A: 1e5, B: 2e6, C: 0.0}, "3 donors: b 2.00 MB/s, a 100.0 kB/s"),
        ({A: 4e6, B: 2e6, C: 3e6, PeerId("d"): 1e5}, "4 donors: a 4.00 MB/s, c 3.00 MB/s, b 2.00 MB/s"),
    ],
)
def test_a_person_hears_who_gives_and_how_fast(rates, told):
    assert str(TransferFlow(rates)) == told


# -- fetching from several -------------------------------------------------------------------------------------------


def record(peer: PeerId) -> PeerRecord:
    return PeerRecord(peer, RunId(b"r" * 32), (), True, 1, 1, 0, 0.0, Status.TRAINING, 0.0, 60.0)


class Donors:
    """A transport to donors with rates in bytes per second. A `fault` may raise or wait before a piece is sent."""

    def __init__(self, **rates: float) -> None:
        self.rates = rates
        self.snapshot = copy_of(STATE, 3, momentum=True)
        self.asked: Counter[int] = Counter()
        self.faults = {}
        self.under_way: Counter[PeerId] = Counter()
        self.most: Counter[PeerId] = Counter()

    async def describe_state(self, donor: PeerRecord, timeout_s: float) -> StateIndex:
        raise AssertionError("the index is known")

    async def fetch_piece(
        self, donor: PeerRecord, index: StateIndex, piece: int, timeout_s: float, arrived: Arrived
    ) -> bytes:
        peer = donor.peer_id
        self.asked[piece] += 1
        self.under_way[peer] += 1
        self.most[peer] = max(self.most[peer], self.under_way[peer])
        data = bytes(self.snapshot.piece(piece))
        try:
            async with asyncio.timeout(timeout_s):
                if peer in self.faults:
                    data = await self.faults[peer](piece, data)
                for _ in range(PARTS):
                    await asyncio.sleep(len(data) / self.rates[peer] / PARTS)
                    arrived(len(data) // PARTS)
        except TimeoutError:
            raise PartnerLost(f"{peer} did not answer within {timeout_s:.1f} s") from None
        finally:
            self.under_way[peer] -= 1
        return data

    def transfer(self, pieces: PieceStore, outcome: Outcome, *peers: str) -> Download:
        transfer = Download(self, pieces, DonorRates(), outcome)
        for peer in peers or self.rates:
            transfer.add(record(PeerId(peer)), self.snapshot.index)
        return transfer


def whole(pieces: PieceStore) -> None:
    params, momentum = pieces.state()
    assert torch.equal(params, STATE.params)
    assert torch.equal(momentum, STATE.momentum)


@virtually
async def test_three_donors_bring_it_bit_for_bit_in_the_time_of_all_their_rates() -> None:
    donors, pieces, outcome = Donors(a=4e6, b=2e6, c=1e6), PieceStore(LAYOUT, None, momentum=True), Outcome()
    loop = asyncio.get_running_loop()
    began = loop.time()
    await donors.transfer(pieces, outcome).run()
    took = loop.time() - began
    whole(pieces)
    assert took < 1.25 * pieces.nbytes / 7e6
    assert set(donors.asked) == set(range(40))
    assert sum(donors.asked.values()) * PIECE == 40 * PIECE + outcome.raced
    assert set(donors.most.values()) == {1}, "one piece in flight a donor"
    assert outcome.given[A] > outcome.given[B] > outcome.given[C]
    assert sum(outcome.given.values()) == pieces.nbytes


@virtually
async def test_of_a_state_in_one_piece_the_slow_donor_that_was_first_holds_nobody_up() -> None:
    donors, pieces, outcome = Donors(a=1e4, b=2e6, c=2e6), PieceStore(LAYOUT, None, momentum=True), Outcome()
    await donors.transfer(pieces, outcome, "c").run()
    pieces.retain(lambda number, held: number != 0)
    loop = asyncio.get_running_loop()
    began = loop.time()
    flows = []
    transfer = Download(donors, pieces, DonorRates(), outcome, flows.append)
    for peer in (A, B):
        transfer.add(record(peer), donors.snapshot.index)
    await transfer.run()
    whole(pieces)
    assert loop.time() - began < 3.0, "26 s at the slow one's rate"
    assert outcome.given[B] == PIECE
    told = [flow.arriving for flow in flows if flow.rates.get(A) == pytest.approx(1e4, rel=0.5)]
    assert 0 < max(told) < PIECE, "the bytes are told before the piece is here"


@virtually
async def test_a_donor_that_dies_costs_only_what_it_had_in_flight() -> None:
    donors, pieces, outcome = Donors(a=1e6, b=1e6, c=1e6), PieceStore(LAYOUT, None, momentum=True), Outcome()
    loop = asyncio.get_running_loop()
    dies = loop.time() + 0.5 * pieces.nbytes / 3e6

    async def killed(piece: int, data: bytes) -> bytes:
        if loop.time() < dies < loop.time() + PIECE / 1e6:
            await asyncio.sleep(dies - loop.time())
        if loop.time() >= dies:
            raise PartnerLost("connection refused")
        return data

    donors.faults[C] = killed
    began = loop.time()
    await donors.transfer(pieces, outcome).run()
    whole(pieces)
    allowed = 0.5 * pieces.nbytes / 3e6 + 0.5 * pieces.nbytes / 2e6
    assert loop.time() - began < 1.1 * allowed
    assert sum(donors.asked.values()) <= 41
    assert "refused" in outcome.left[C]


@virtually
async def test_a_donor_that_falls_asleep_holds_nobody_up() -> None:
    donors, pieces, outcome = Donors(a=1e6, b=1e6), PieceStore(LAYOUT, None, momentum=True), Outcome()
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def asleep(piece: int, data: bytes) -> bytes:
        if loop.time() - began > 2.0:
            await asyncio.Event().wait()
        return data

    donors.faults[B] = asleep
    await donors.transfer(pieces, outcome).run()
    whole(pieces)
    assert loop.time() - began < 1.1 * (2.0 + (pieces.nbytes - 4e6) / 1e6)
    assert "did not answer" in outcome.left[B]


@virtually
async def test_wrong_bytes_are_never_part_of_the_state_and_their_donor_is_not_asked_again() -> None:
    donors, pieces, outcome = Donors(a=1e6, b=1e6), PieceStore(LAYOUT, None, momentum=True), Outcome()

    async def liar(piece: int, data: bytes) -> bytes:
        return bytes([data[0] ^ 1]) + data[1:]

    donors.faults[B] = liar
    transfer = donors.transfer(pieces, outcome)
    await transfer.run()
    whole(pieces)
    assert outcome.wrong == {B}
    assert B not in outcome.given
    transfer.add(record(B), donors.snapshot.index)
    assert B not in transfer.donors


@virtually
async def test_a_busy_donor_is_asked_again_while_others_go_on() -> None:
    donors, pieces, outcome = Donors(a=1e6, b=1e6), PieceStore(LAYOUT, None, momentum=True), Outcome()
    loop = asyncio.get_running_loop()
    free_at = loop.time() + 3.0

    async def busy(piece: int, data: bytes) -> bytes:
        if loop.time() < free_at:
            raise PartnerRefused("busy", "four joiners", 2.0)
        return data

    donors.faults[B] = busy
    await donors.transfer(pieces, outcome).run()
    whole(pieces)
    assert outcome.given[B] > 2e6
    assert outcome.left == {}


@virtually
async def test_with_nobody_left_it_ends_and_what_is_here_stays() -> None:
    donors, pieces, outcome = Donors(a=1e6), PieceStore(LAYOUT, None, momentum=True), Outcome()

    async def gone(piece: int, data: bytes) -> bytes:
        if len(pieces.held) == 10:
            raise PartnerRefused("gone", "another snapshot by now")
        return data

    donors.faults[A] = gone
    await donors.transfer(pieces, outcome).run()
    assert len(pieces.held) == 10
    del donors.faults[A]
    asked = donors.asked.total()
    await donors.transfer(pieces, outcome, "a").run()
    whole(pieces)
    assert donors.asked.total() - asked == 30


@virtually
async def test_cancelled_it_leaves_nothing_running() -> None:
    donors, pieces = Donors(a=1e5, b=1e5), PieceStore(LAYOUT, None, momentum=True)
    running = asyncio.create_task(donors.transfer(pieces, Outcome()).run())
    await asyncio.sleep(0.1)
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    assert donors.under_way.total() == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_fetch_that_fails_as_the_transfer_is_cancelled_is_no_unheard_error() -> None:
    unheard: list[str] = []

    async def cancelled() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context["message"]))
        donors = Donors(a=1e5)

        async def fails(piece: int, data: bytes) -> bytes:
            try:
                await asyncio.sleep(1.0)
            except asyncio.CancelledError:
                raise PartnerLost("the link went with the call") from None
            return data

        donors.faults[A] = fails
        running = asyncio.create_task(donors.transfer(PieceStore(LAYOUT, None, momentum=True), Outcome()).run())
        await asyncio.sleep(0.1)
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()

    run_virtual(cancelled())
    gc.collect()
    assert unheard == []


# -- the pieces on disk ----------------------------------------------------------------------------------------------


def fill(pieces: PieceStore, numbers, round_: int = 3) -> None:
    snapshot = StateSnapshot(STATE.params, LAYOUT, round_, STATE.momentum)
    pieces.begin_state(snapshot.index.snapshot)
    for number in numbers:
        data = bytes(snapshot.piece(number))
        pieces.store(number, snapshot.index, data)
        pieces.place(number, snapshot.index, data)


def again(folder) -> PieceStore:
    pieces = PieceStore(LAYOUT, folder, momentum=True)
    pieces.load()
    return pieces


def test_what_was_stored_is_there_after_a_restart(tmp_path):
    first = PieceStore(LAYOUT, tmp_path / "transfer", momentum=True)
    fill(first, range(24))
    back = again(tmp_path / "transfer")
    assert back.held == first.held
    assert back.mark == first.mark != ""
    fill(back, range(24, 40))
    whole(back)
    back.clear()
    assert not (tmp_path / "transfer").exists()


def test_damaged_torn_and_foreign_files_are_deleted_and_never_used(tmp_path):
    folder = tmp_path / "transfer"
    fill(PieceStore(LAYOUT, folder, momentum=True), range(6))
    inside = next(folder.iterdir())
    files = {int(f.name.partition("-")[0]): f for f in inside.iterdir() if f.name != "state"}
    files[0].write_bytes(files[0].read_bytes()[:-1])
    files[1].write_bytes(bytes([files[1].read_bytes()[0] ^ 1]) + files[1].read_bytes()[1:])
    files[2].rename(inside / files[2].name.replace("2-", "99-", 1))
    (inside / ".half").write_bytes(b"x" * 100)
    (folder / "of another layout").mkdir()
    secret = tmp_path / "secret"
    secret.write_bytes(files[3].read_bytes())
    files[3].unlink()
    files[3].symlink_to(secret)
    back = again(folder)
    assert set(back.held) == {4, 5}
    assert {f.name for f in inside.iterdir()} == {files[4].name, files[5].name, "state"}
    assert list(folder.iterdir()) == [inside]
    assert secret.exists(), "a link is not followed"


def test_pieces_that_do_not_go_with_the_rest_are_forgotten_on_disk_too(tmp_path):
    pieces = PieceStore(LAYOUT, tmp_path, momentum=True)
    fill(pieces, range(5), round_=3)
    fill(pieces, range(5, 10), round_=9)
    assert pieces.retain(lambda number, held: held.round >= 5) == 5 * PIECE
    assert set(again(tmp_path).held) == set(range(5, 10))


def test_a_pairs_pieces_are_not_a_groups(tmp_path):
    fill(PieceStore(LAYOUT, tmp_path, momentum=True), range(5))
    pair = PieceStore(LAYOUT, tmp_path, momentum=False)
    pair.load()
    assert pair.held == {}
    assert again(tmp_path).held == {}, "foreign ones were deleted"


def test_zeros_need_no_fetching(tmp_path):
    outer = OuterState(LAYOUT, torch.ones(LAYOUT.elements), torch.zeros(LAYOUT.elements))
    index, pieces = copy_of(outer, 0, momentum=True).index, PieceStore(LAYOUT, None, momentum=True)
    taken = [number for number in range(40) if pieces.put_zeros(number, index.pieces[number], 0)]
    assert taken == list(range(20, 40))


def test_bytes_that_are_not_finite_or_not_the_digests_are_refused(tmp_path):
    pieces = PieceStore(LAYOUT, tmp_path, momentum=False)
    bad = STATE.params.clone()
    bad[5] = float("nan")
    snapshot = StateSnapshot(bad, LAYOUT, 0)
    for number, data in ((0, bytes(snapshot.piece(0))), (1, bytes(PIECE))):
        with pytest.raises(BadPayload):
            pieces.store(number, snapshot.index, data)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_be_written_costs_only_the_resumption(tmp_path):
    (tmp_path / "transfer").write_bytes(b"a file where the folder should be")
    pieces = PieceStore(LAYOUT, tmp_path / "transfer", momentum=True)
    pieces.load()
    fill(pieces, range(40))
    whole(pieces)
    assert np.isfinite(pieces.state()[0].numpy()).all()
