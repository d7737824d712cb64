"""The shard supply: which shards it fetches, in which order, which files it protects, and its answers to the
trainer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from peer.errors import PeerError
from peer.node.shard_supply import MOST_WRONG, TRIES, ShardSupply
from peer.observe import events
from peer.ports.trainer import ShardSkip
from peer.protocol.messages import PeerId
from peer.run.files.artifact import ArtifactRef
from peer.run.files.token_index import ShardEntry, ShardTable, TokenIndex

DIGESTS = [f"{number:064x}" for number in range(1, 7)]
INDEX = TokenIndex(
    "uint16",
    1000,
    0,
    "0" * 64,
    ShardTable(ShardEntry(digest, 100, 1, 300) for digest in DIGESTS[:5]),
    ShardTable([ShardEntry(DIGESTS[5], 50, 1, 150)]),
)
PATIENCE_S = 10.0


class Swarm:
    """Fetcher and pins in one object."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fetched: list[tuple[str, int]] = []
        self.held: list[str] = []
        self.forgotten: list[str] = []
        self.asked: list[list[str]] = []
        self.known: set[str] = set()
        self.here: set[str] = set()
        self.nobody_has: set[str] = set()
        self.lost: set[str] = set()
        self.began = asyncio.Event()
        self.gates: dict[str, asyncio.Event] = {}

    async def query(self, refs: Sequence[ArtifactRef]) -> None:
        self.asked.append([ref.digest for ref in refs])
        self.known |= {ref.digest for ref in refs} - self.nobody_has

    def holders(self, ref: ArtifactRef) -> list[PeerId]:
        return [PeerId("somebody")] if ref.digest in self.known else []

    def has(self, digest: str) -> bool:
        return digest in self.here

    async def fetch(self, ref: ArtifactRef, timeout_s: float) -> Path:
        assert ref.digest in self.held, "it might be evicted before it is used"
        self.fetched.append((ref.digest, ref.size))
        self.began.set()
        if ref.digest in self.gates:
            await self.gates[ref.digest].wait()
        if ref.digest in self.lost:
            raise PeerError("it was lost on the way", "Wait.")
        self.here.add(ref.digest)
        return self.folder / ref.digest

    @contextlib.contextmanager
    def holding(self, digest: str) -> Iterator[None]:
        self.held.append(digest)
        try:
            yield
        finally:
            self.held.remove(digest)

    def forget(self, digest: str) -> None:
        self.forgotten.append(digest)
        self.here.discard(digest)


class Trainer:
    """Records the answers."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, Path | None, str]] = []
        self._came = asyncio.Event()

    def take(self, digest: str, path: Path | None, reason: str) -> None:
        self.answers.append((digest, path, reason))
        self._came.set()

    async def until(self, count: int) -> None:
        while len(self.answers) < count:
            self._came.clear()
            await self._came.wait()


Play = Callable[[ShardSupply, Swarm, Trainer], Awaitable[None]]


def played(folder: Path, play: Play, own: Path | None = None) -> tuple[Swarm, Trainer, list[events.Event]]:
    swarm, journal = Swarm(folder), list[events.Event]()

    async def run() -> Trainer:
        trainer = Trainer()
        supply = ShardSupply(INDEX, swarm, swarm, journal.append, own, retry_s=0.0)
        supply.begin(trainer.take)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await play(supply, swarm, trainer)
        finally:
            await supply.close()
        return trainer

    trainer = asyncio.run(run())
    assert swarm.held == [], "all is released in the end"
    return swarm, trainer, journal


def test_shards_are_fetched_in_the_order_of_need_and_held_while_wanted(tmp_path: Path) -> None:
    async def play(supply: ShardSupply, swarm: Swarm, trainer: Trainer) -> None:
        wanted = [DIGESTS[5], DIGESTS[2], DIGESTS[0]]
        supply.want(wanted, wanted, ())
        await trainer.until(3)
        assert sorted(swarm.held) == sorted(wanted)
        supply.want([DIGESTS[5], DIGESTS[0], DIGESTS[1]], [DIGESTS[1]], ())
        await trainer.until(4)
        assert sorted(swarm.held) == sorted([DIGESTS[5], DIGESTS[0], DIGESTS[1]])

    swarm, trainer, _ = played(tmp_path, play)
    order = [DIGESTS[5], DIGESTS[2], DIGESTS[0], DIGESTS[1]]
    assert swarm.fetched == [(order[0], 100), *((digest, 200) for digest in order[1:])]
    assert trainer.answers == [(digest, tmp_path / digest, "") for digest in order]


def test_nobody_has_it_is_an_answer_after_some_tries_and_the_next_one_follows(tmp_path: Path) -> None:
    async def play(supply: ShardSupply, swarm: Swarm, trainer: Trainer) -> None:
        swarm.nobody_has = {DIGESTS[0]}
        supply.want(DIGESTS[:2], DIGESTS[:2], ())
        await trainer.until(2)
        assert swarm.held == [DIGESTS[1]], "nothing is there to hold"

    swarm, trainer, _ = played(tmp_path, play)
    assert swarm.asked == [DIGESTS[:2]] * TRIES, "one call asks for all of them, and peers are not asked twice"
    assert swarm.fetched == [(DIGESTS[1], 200)]
    reason = "no peer that was asked has it"
    assert trainer.answers == [(DIGESTS[0], None, reason), (DIGESTS[1], tmp_path / DIGESTS[1], "")]


def test_a_shard_that_is_lost_on_the_way_is_tried_again(tmp_path: Path) -> None:
    async def play(supply: ShardSupply, swarm: Swarm, trainer: Trainer) -> None:
        swarm.lost = {DIGESTS[0]}
        supply.want(DIGESTS[:1], DIGESTS[:1], ())
        await trainer.until(1)

    swarm, trainer, _ = played(tmp_path, play)
    assert swarm.fetched == [(DIGESTS[0], 200)] * TRIES
    assert trainer.answers == [(DIGESTS[0], None, "it was lost on the way")]


def test_nobody_is_asked_for_what_is_in_the_cache(tmp_path: Path) -> None:
    async def play(supply: ShardSupply, swarm: Swarm, trainer: Trainer) -> None:
        swarm.here = {DIGESTS[0]}
        supply.want(DIGESTS[:1], DIGESTS[:1], ())
        await trainer.until(1)

    swarm, trainer, _ = played(tmp_path, play)
    assert swarm.asked == []
    assert trainer.answers == [(DIGESTS[0], tmp_path / DIGESTS[0], "")]


def test_a_shard_that_training_needs_goes_before_one_that_a_probe_looks_into(tmp_path: Path) -> None:
    needed, beside = DIGESTS[0], DIGESTS[1]

    async def play(supply: ShardSupply, swarm: Swarm, trainer: Trainer) -> None:
        swarm.gates[beside] = asyncio.Event()
        supply.want([beside], [beside], ())
        await swarm.began.wait()
        supply.want([needed, beside], [needed], ())
        await trainer.until(1)
        swarm.gates[beside].set()
        await trainer.until(2)

    swarm, trainer, _ = played(tmp_path, play)
    assert [digest for digest, *_ in trainer.answers] == [needed, beside]
    assert [digest for digest, _ in swarm.fetched] == [beside, needed, beside]


def test_a_shard_that_is_wanted_no_more_is_given_up_for_the_next(tmp_path: Path) -> None:
    async def play(supply: ShardSupply, swarm: Swarm, trainer: Trainer) -> None:
        swarm.gates[DIGESTS[0]] = asyncio.Event()
        supply.want([DIGESTS[0]], [DIGESTS[0]], ())
        await swarm.began.wait()
        supply.want([DIGESTS[1]], [DIGESTS[1]], ())
        await trainer.until(1)
        assert swarm.held == [DIGESTS[1]]

    _, trainer, _ = played(tmp_path, play)
    assert [digest for digest, _, _ in trainer.answers] == [DIGESTS[1]]


def test_a_wrong_file_is_forgotten_and_fetched_again_but_not_for_ever(tmp_path: Path) -> None:
    async def play(supply: ShardSupply, swarm: Swarm, trainer: Trainer) -> None:
        first = DIGESTS[:1]
        supply.want(first, first, ())
        for count in range(1, MOST_WRONG + 1):
            await trainer.until(count)
            supply.want(first, first, first)
        await trainer.until(MOST_WRONG + 1)

    swarm, trainer, _ = played(tmp_path, play)
    assert swarm.forgotten == [DIGESTS[0]] * (MOST_WRONG - 1), "the last one is not asked for again"
    assert len(swarm.fetched) == MOST_WRONG
    assert trainer.answers[-1] == (DIGESTS[0], None, f"its content was wrong {MOST_WRONG} times")


@pytest.mark.parametrize(("size", "own"), [(200, True), (198, False)])
def test_files_of_the_volunteer_come_first_when_their_size_fits(tmp_path: Path, size: int, own: bool) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train-00001.tokens").write_bytes(bytes(size))

    async def play(supply: ShardSupply, swarm: Swarm, trainer: Trainer) -> None:
        supply.want([DIGESTS[1]], [DIGESTS[1]], ())
        await trainer.until(1)
        supply.want([DIGESTS[1]], [DIGESTS[1]], [DIGESTS[1]])  # the local file has other content, so the swarm is asked
        await trainer.until(2)

    swarm, trainer, _ = played(tmp_path, play, folder)
    paths = [path for _, path, _ in trainer.answers]
    assert paths == [folder / "train-00001.tokens" if own else tmp_path / DIGESTS[1], tmp_path / DIGESTS[1]]
    assert swarm.forgotten == ([] if own else [DIGESTS[1]])


def test_a_new_trainer_process_is_answered_anew(tmp_path: Path) -> None:
    async def play(supply: ShardSupply, swarm: Swarm, trainer: Trainer) -> None:
        supply.want(DIGESTS[:1], DIGESTS[:1], ())
        await trainer.until(1)
        later = Trainer()
        supply.begin(later.take)
        assert swarm.held == []
        supply.want(DIGESTS[:1], DIGESTS[:1], ())
        await later.until(1)

    swarm, trainer, _ = played(tmp_path, play)
    assert len(trainer.answers) == 1
    assert len(swarm.fetched) == 2


def test_a_skipped_shard_is_journaled(tmp_path: Path) -> None:
    async def play(supply: ShardSupply, swarm: Swarm, trainer: Trainer) -> None:
        supply.skipped(ShardSkip(1, 2, 3, DIGESTS[3], "nobody has it"))

    _, _, journal = played(tmp_path, play)
    assert journal == [
        events.ShardSkipped(epoch=1, place=2, shard=3, digest=DIGESTS[3], reason="nobody has it"),
    ]
