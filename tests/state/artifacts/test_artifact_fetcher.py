"""Fetching artifacts from several donors at once, from liars, and from no donor, and resuming after an interruption."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from peer.errors import ArtifactMissing, CacheTooSmall, PartnerLost, PartnerRefused
from peer.lab.sim.virtual_clock import run_virtual
from peer.protocol.messages import MAX_ARTIFACTS, PeerId, PeerRecord, RunId, Status
from peer.protocol.wire.payload import Arrived
from peer.run.files.artifact import ArtifactRef
from peer.state.artifacts.cache import ArtifactCache
from peer.state.artifacts.fetcher import ArtifactFetcher
from tests.support.artifacts import PIECE, content, ref_of, small_pieces

__all__ = ["small_pieces"]
pytestmark = pytest.mark.usefixtures("small_pieces")

SIZE = 20 * PIECE + 5
DATA = content(0, SIZE)
REF = ref_of(DATA)
RATE, PARTS = 1e5, 64

Fault = Callable[[int, bytes], Awaitable[bytes]]


def record(peer: str, status: Status = Status.TRAINING) -> PeerRecord:
    return PeerRecord(PeerId(peer), RunId(b"r" * 32), (), True, 1, 1, 0, 0.0, status, 0.0, 60.0)


class Swarm:
    """Peers that hold files and send at `RATE`. A `fault` may change or delay a piece of a peer."""

    def __init__(self, **holding: Sequence[bytes]) -> None:
        self.files = {PeerId(peer): {ref_of(data).digest: data for data in files} for peer, files in holding.items()}
        self.faults: dict[str, Fault] = {}
        self.rate = RATE
        self.asked: list[tuple[PeerId, int]] = []
        self.fetched: Counter[PeerId] = Counter()
        self.under_way: Counter[PeerId] = Counter()
        self.silent: set[str] = set()

    async def peers(self) -> dict[PeerId, PeerRecord]:
        return {peer: record(peer) for peer in self.files}

    async def query_artifacts(self, holder: PeerRecord, digests: Sequence[bytes], timeout_s: float) -> list[bool]:
        assert len(digests) <= MAX_ARTIFACTS
        self.asked.append((holder.peer_id, len(digests)))
        if holder.peer_id in self.silent:
            await asyncio.sleep(timeout_s)
            raise PartnerLost("it did not answer")
        return [digest.hex() in self.files[holder.peer_id] for digest in digests]

    async def fetch_artifact(
        self, donor: PeerRecord, digest: bytes, piece: int, nbytes: int, timeout_s: float, arrived: Arrived
    ) -> bytes:
        peer = donor.peer_id
        self.fetched[peer] += 1
        self.under_way[peer] += 1
        try:
            async with asyncio.timeout(timeout_s):
                whole = self.files[peer].get(digest.hex())
                if whole is None:
                    raise PartnerRefused("gone", "deleted meanwhile")
                data = whole[piece * PIECE : piece * PIECE + nbytes]
                if peer in self.faults:
                    data = await self.faults[peer](piece, data)
                for _ in range(PARTS):
                    await asyncio.sleep(len(data) / self.rate / PARTS)
                    arrived(len(data) // PARTS)
                return data
        except TimeoutError:
            raise PartnerLost("too slow") from None
        finally:
            self.under_way[peer] -= 1

    def fetcher(self, folder: Path, said: list[str] | None = None, limit: int = 10 * SIZE) -> ArtifactFetcher:
        say = (lambda text: None) if said is None else said.append
        return ArtifactFetcher(self, self.peers, ArtifactCache(folder, limit), report=say, rng=random.Random(0))


async def lies(piece: int, data: bytes) -> bytes:
    return bytes(len(data))


def test_several_donors_bring_one_artifact_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        swarm, told = Swarm(a=[DATA], b=[DATA], c=[DATA], d=[]), list[tuple[str, float]]()
        began = asyncio.get_running_loop().time()

        def progress(name: str, done: float, total: float | None, unit: str) -> None:
            assert (total, unit) in ((SIZE, "bytes"), (60.0, "s"))
            told.append((name, done))

        path = await swarm.fetcher(tmp_path).fetch(REF, 60.0, progress, "the tokenizer")
        assert path.read_bytes() == DATA
        assert set(swarm.fetched) == {"a", "b", "c"}
        assert swarm.fetched.total() == 21
        assert asyncio.get_running_loop().time() - began < 1.3 * SIZE / (3 * RATE)
        assert told[-1] == ("fetching the tokenizer (0 donors)", SIZE)
        done = [done for name, done in told if name.startswith("fetching")]
        assert done == sorted(done)
        assert path.parent == tmp_path

    run_virtual(test())


def test_each_piece_puts_the_deadline_off(tmp_path: Path) -> None:
    async def test() -> None:
        timeout_s = 3 * PIECE / RATE
        assert timeout_s < SIZE / RATE / 4
        assert (await Swarm(a=[DATA]).fetcher(tmp_path).fetch(REF, timeout_s)).read_bytes() == DATA

    run_virtual(test())


@pytest.mark.parametrize(("parts_in_time", "comes"), [(3, True), (0.3, False)])
def test_bytes_of_a_slow_home_put_the_deadline_off_but_a_trickle_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts_in_time: float, comes: bool
) -> None:
    """A piece takes many times longer than the deadline, so incomplete pieces have to extend it."""
    monkeypatch.setattr("peer.state.artifacts.fetcher.PROGRESS_BYTES", PIECE // 16)
    swarm, timeout_s = Swarm(a=[DATA]), 0.5
    swarm.rate = parts_in_time * PIECE / 16 / timeout_s

    async def test() -> None:
        fetching = swarm.fetcher(tmp_path).fetch(REF, timeout_s)
        if comes:
            assert (await fetching).read_bytes() == DATA
        else:
            with pytest.raises(ArtifactMissing):
                await fetching

    run_virtual(test())


def test_what_is_here_needs_nobody(tmp_path: Path) -> None:
    async def test() -> None:
        await Swarm(a=[DATA]).fetcher(tmp_path).fetch(REF, 60.0)
        alone = Swarm()
        assert (await alone.fetcher(tmp_path).fetch(REF, 1.0)).read_bytes() == DATA
        assert alone.asked == []

    run_virtual(test())


def test_a_damaged_one_is_fetched_again_and_that_is_said(tmp_path: Path) -> None:
    async def test() -> None:
        path = await Swarm(a=[DATA]).fetcher(tmp_path).fetch(REF, 60.0)
        path.write_bytes(DATA[:-1] + b"?")
        swarm, said = Swarm(a=[DATA]), list[str]()
        assert (await swarm.fetcher(tmp_path, said).fetch(REF, 60.0, what="a shard")).read_bytes() == DATA
        assert said == ["a shard was damaged on this disk, and is fetched again"]
        assert swarm.fetched.total() == 21

    run_virtual(test())


def test_the_liar_among_several_donors_is_found_and_left_out(tmp_path: Path) -> None:
    async def test(liars: str) -> None:
        swarm, said = Swarm(a=[DATA], b=[DATA], c=[DATA]), list[str]()
        swarm.faults = dict.fromkeys(liars, lies)
        fetcher = swarm.fetcher(tmp_path / liars, said)
        path = await fetcher.fetch(REF, 60.0, what="a shard")
        assert path.read_bytes() == DATA
        assert set(fetcher.liars) == set(liars)
        assert any("wrong bytes" in text for text in said)
        other = content(1, SIZE)
        for files in swarm.files.values():
            files[ref_of(other).digest] = other
        before = swarm.fetched.copy()
        await fetcher.fetch(ref_of(other), 60.0)
        assert all(swarm.fetched[PeerId(liar)] == before[PeerId(liar)] for liar in liars)

    for liars in ("a", "b", "ab", "bc"):
        run_virtual(test(liars))


def test_the_donor_of_one_wrong_piece_is_the_liar_and_no_other(tmp_path: Path) -> None:
    async def test() -> None:
        data = content(3, PIECE // 2)
        swarm = Swarm(a=[data])
        swarm.faults["a"] = lies
        fetcher = swarm.fetcher(tmp_path)
        with pytest.raises(ArtifactMissing, match="a: it gave wrong bytes of a shard"):
            await fetcher.fetch(ref_of(data), 30.0, what="a shard")
        assert swarm.fetched.total() == 1
        swarm.files[PeerId("honest")] = {ref_of(data).digest: data}
        assert (await fetcher.fetch(ref_of(data), 30.0)).read_bytes() == data

    run_virtual(test())


def test_short_pieces_are_wrong_bytes_too(tmp_path: Path) -> None:
    async def test() -> None:
        async def short(piece: int, data: bytes) -> bytes:
            return data[:-1]

        swarm = Swarm(a=[DATA], b=[DATA])
        swarm.faults["a"] = short
        fetcher = swarm.fetcher(tmp_path)
        assert (await fetcher.fetch(REF, 60.0)).read_bytes() == DATA
        assert set(fetcher.liars) == {"a"}

    run_virtual(test())


def test_liars_do_not_put_the_deadline_off_for_ever(tmp_path: Path) -> None:
    async def test() -> None:
        swarm = Swarm(liar0=[DATA])
        loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()

        async def another(piece: int, data: bytes) -> bytes:
            name = f"liar{len(swarm.files)}"
            if piece == 0:
                swarm.files[PeerId(name)] = {REF.digest: DATA}
                swarm.faults[name] = another
            return bytes(len(data))

        swarm.faults["liar0"] = another
        with pytest.raises(ArtifactMissing, match="wrong bytes"):
            await swarm.fetcher(tmp_path).fetch(REF, 20.0)
        assert loop.time() - began < 10 * (20.0 + SIZE / RATE)

    run_virtual(test())


def test_when_nobody_has_it_the_error_says_what_each_answered(tmp_path: Path) -> None:
    async def test() -> None:
        loop, swarm = asyncio.get_running_loop(), Swarm(a=[], b=[], c=[], d=[])
        swarm.silent = {"b"}
        began = loop.time()
        with pytest.raises(ArtifactMissing) as caught:
            await swarm.fetcher(tmp_path).fetch(REF, 30.0, what="the tokenizer")
        assert 30.0 <= loop.time() - began < 31.0
        assert f"no piece of the tokenizer ({REF.digest[:16]}" in caught.value.found
        assert "does not have it" in caught.value.found
        assert "1 more peers" in caught.value.found
        assert max(Counter(peer for peer, _ in swarm.asked).values()) <= 7, "not asked again at once"
        with pytest.raises(ArtifactMissing, match="nobody of this run answers yet"):
            await Swarm().fetcher(tmp_path).fetch(REF, 5.0)
        assert ArtifactCache(tmp_path, 10 * SIZE).nbytes == 0, "no room is taken for what nobody has"

    run_virtual(test())


def test_one_that_comes_later_is_found(tmp_path: Path) -> None:
    async def test() -> None:
        swarm = Swarm(a=[])
        fetching = asyncio.ensure_future(swarm.fetcher(tmp_path).fetch(REF, 120.0))
        await asyncio.sleep(50.0)
        swarm.files[PeerId("b")] = {REF.digest: DATA}
        await asyncio.sleep(20.0)
        assert (await fetching).read_bytes() == DATA

    run_virtual(test())


def test_a_donor_that_dies_costs_only_what_it_had_in_flight(tmp_path: Path) -> None:
    async def test() -> None:
        swarm = Swarm(a=[DATA], b=[DATA])

        async def dies(piece: int, data: bytes) -> bytes:
            if swarm.fetched[PeerId("a")] > 3:
                raise PartnerLost("connection refused")
            return data

        swarm.faults["a"] = dies
        fetcher = swarm.fetcher(tmp_path)
        assert (await fetcher.fetch(REF, 60.0)).read_bytes() == DATA
        assert swarm.fetched.total() <= 23
        assert fetcher.liars == {}

    run_virtual(test())


def test_pieces_that_are_here_are_not_fetched_by_the_next_life(tmp_path: Path) -> None:
    async def test() -> None:
        swarm = Swarm(a=[DATA])
        running = asyncio.ensure_future(swarm.fetcher(tmp_path).fetch(REF, 60.0))
        while swarm.fetched.total() < 11:
            await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert swarm.under_way.total() == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
        again = Swarm(b=[DATA])
        assert (await again.fetcher(tmp_path).fetch(REF, 60.0)).read_bytes() == DATA
        assert again.fetched.total() == 11

    run_virtual(test())


def test_pieces_of_a_former_life_that_are_wrong_blame_nobody_new(tmp_path: Path) -> None:
    async def test() -> None:
        liar = Swarm(liar=[DATA])
        liar.faults["liar"] = lies
        running = asyncio.ensure_future(liar.fetcher(tmp_path).fetch(REF, 60.0))
        while liar.fetched.total() < 11:
            await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.wait({running})
        swarm = Swarm(honest=[DATA])
        fetcher = swarm.fetcher(tmp_path)
        assert (await fetcher.fetch(REF, 60.0)).read_bytes() == DATA
        assert fetcher.liars == {}

    run_virtual(test())


def test_the_same_artifact_fetched_twice_at_once_comes_once(tmp_path: Path) -> None:
    async def test() -> None:
        swarm = Swarm(a=[DATA])
        fetcher = swarm.fetcher(tmp_path)
        one, other = await asyncio.gather(fetcher.fetch(REF, 60.0), fetcher.fetch(REF, 60.0))
        assert one == other
        assert swarm.fetched.total() == 21

    run_virtual(test())


def test_one_that_another_process_never_completes_is_missing_by_the_deadline(tmp_path: Path) -> None:
    async def test() -> None:
        draft = ArtifactCache(tmp_path, 10 * SIZE).draft(REF)
        assert draft is not None
        with contextlib.closing(draft), pytest.raises(ArtifactMissing, match="another process of this home"):
            await Swarm(a=[DATA]).fetcher(tmp_path).fetch(REF, 5.0)
        assert (await Swarm(a=[DATA]).fetcher(tmp_path).fetch(REF, 60.0)).read_bytes() == DATA

    run_virtual(test())


def test_many_are_asked_about_in_batches_and_not_again(tmp_path: Path) -> None:
    async def test() -> None:
        refs = [ArtifactRef(digest=f"{number:064x}", size=5) for number in range(600)]
        small = content(1, 5)
        swarm = Swarm(a=[DATA, small], b=[])
        fetcher = swarm.fetcher(tmp_path)
        await fetcher.query([*refs, REF, ref_of(small)])
        assert sorted(swarm.asked) == [(peer, n) for peer in "ab" for n in (90, 256, 256)]
        assert (fetcher.holders(REF), fetcher.holders(refs[0])) == (["a"], [])
        await fetcher.query([*refs, REF])
        assert len(swarm.asked) == 6
        await fetcher.fetch(REF, 60.0)
        assert len(swarm.asked) == 6, "who holds it is known"

    run_virtual(test())


def test_a_crowd_is_asked_a_few_at_a_time(tmp_path: Path) -> None:
    async def test() -> None:
        swarm = Swarm(**{f"p{number}": [] for number in range(200)}, last=[DATA])
        at_once = most = 0
        plain = swarm.query_artifacts

        async def counted(holder: PeerRecord, digests: Sequence[bytes], timeout_s: float) -> list[bool]:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.05)
            at_once -= 1
            return await plain(holder, digests, timeout_s)

        swarm.query_artifacts = counted  # type: ignore[method-assign]
        fetcher = swarm.fetcher(tmp_path)
        await fetcher.query([REF])
        assert (len(swarm.asked), most) == (16, 4)
        assert (await fetcher.fetch(REF, 300.0)).read_bytes() == DATA

    run_virtual(test())


def test_one_that_does_not_fit_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    async def test() -> None:
        swarm = Swarm(a=[DATA])
        with pytest.raises(CacheTooSmall):
            await swarm.fetcher(tmp_path, limit=SIZE).fetch(REF, 60.0)
        assert swarm.asked == []

    run_virtual(test())


def test_a_churn_of_fetches_keeps_the_limit(tmp_path: Path) -> None:
    async def test() -> None:
        files = [content(number, SIZE) for number in range(20)]
        swarm = Swarm(a=files, b=files)
        fetcher = swarm.fetcher(tmp_path, limit=5 * (SIZE + 32 * 21))
        for data in files:
            assert (await fetcher.fetch(ref_of(data), 60.0)).read_bytes() == data
            assert ArtifactCache(tmp_path, 10**9).nbytes <= 5 * (SIZE + 32 * 21)

    run_virtual(test())
