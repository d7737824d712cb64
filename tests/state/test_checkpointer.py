from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from peer.errors import HomeUnusable, TrainerDied
from peer.observe.events import Checkpointed, CheckpointFailed, Event
from peer.outer.state import OuterState
from peer.ports.trainer import Trainer
from peer.protocol.messages import RunId
from peer.protocol.model.layout import Layout, TensorSpec
from peer.state import checkpointer as module
from peer.state.checkpoint import CheckpointStore, checkpoint_bytes
from peer.state.checkpointer import Checkpointer, check_disk_room
from peer.state.save_pace import SavePace

RUN = RunId(b"r" * 32)
LAYOUT = Layout((TensorSpec("a", (8,)),), ((0, 1),))


class Saver:
    """Plays the trainer's `save`."""

    def __init__(self) -> None:
        self.tokens = 0
        self.fails: Exception | None = None
        self.hangs = False

    async def save(self, folder: Path) -> int:
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails is not None:
            raise self.fails
        (folder / "trainer.json").write_text("{}")
        return self.tokens


class Held:
    """Offloads work to threads, where completing a checkpoint waits until `gate` is set."""

    def __init__(self, store: CheckpointStore) -> None:
        self.gate = threading.Event()
        complete = store.complete

        def slow(*arguments: Any) -> Any:
            assert self.gate.wait(10)
            return complete(*arguments)

        store.complete = slow  # type: ignore[method-assign]


def made(folder: Path, every_s: float = 0.0) -> tuple[Checkpointer, Saver, CheckpointStore, list[Event]]:
    store, trainer, said = CheckpointStore(folder / "c"), Saver(), list[Event]()
    outer = OuterState.fresh(LAYOUT, torch.zeros(8))
    pace = SavePace(checkpoint_bytes(8), every_s, lambda: 0.0)
    saving = Checkpointer(
        store, RUN, outer, cast(Trainer, trainer), asyncio.to_thread, said.append, pace, lambda: {"peer_id": "me"}
    )
    return saving, trainer, store, said


def test_training_goes_on_while_the_slow_half_is_done_and_no_second_one_begins(tmp_path: Path) -> None:
    saving, trainer, store, said = made(tmp_path)
    held = Held(store)

    async def main() -> None:
        await saving.save_if_due(1)  # returns although the store is blocked
        assert not said
        trainer.tokens = 7
        await saving.save_if_due(2)
        held.gate.set()
        await saving.close()

    asyncio.run(main())
    (event,) = said
    assert isinstance(event, Checkpointed)
    assert event.round == 1
    found, skipped = store.latest(RUN, LAYOUT.digest())
    assert found is not None
    assert found.facts == {"peer_id": "me", "round": 1, "tokens": 0}
    assert skipped == []


def test_the_last_one_waits_for_the_one_under_way_and_is_the_newest(tmp_path: Path) -> None:
    saving, trainer, store, said = made(tmp_path)
    held = Held(store)

    async def main() -> None:
        await saving.save_if_due(1)
        trainer.tokens = 7
        writing = asyncio.create_task(saving.save_now(2))
        await asyncio.sleep(0)
        assert not writing.done()
        held.gate.set()
        await writing
        await saving.close()

    asyncio.run(main())
    assert [event.round for event in said if isinstance(event, Checkpointed)] == [1, 2]
    found, _ = store.latest(RUN, LAYOUT.digest())
    assert found is not None
    assert found.facts["tokens"] == 7


def test_it_waits_until_one_is_due_again(tmp_path: Path) -> None:
    saving, _, _, said = made(tmp_path, every_s=3600.0)

    async def main() -> None:
        for round_ in (1, 2):
            await saving.save_if_due(round_)
            await saving._wait_completed()
        await saving.save_now(3)  # a pause or the end saves even if no checkpoint is due

    asyncio.run(main())
    assert [event.round for event in said if isinstance(event, Checkpointed)] == [1, 3]


@pytest.mark.parametrize("error", [OSError(28, "no space left"), TrainerDied("killed")])
def test_a_failure_is_told_and_leaves_no_draft_and_the_former(tmp_path: Path, error: Exception) -> None:
    saving, trainer, store, said = made(tmp_path)

    async def main() -> None:
        await saving.save_now(1)
        trainer.fails = error
        await saving.save_now(2)
        trainer.fails = None
        await saving.close()

    asyncio.run(main())
    assert [type(event) for event in said] == [Checkpointed, CheckpointFailed]
    assert [path.name for path in store.folder.iterdir()] == ["checkpoint-1"]


def test_a_trainer_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    saving, trainer, store, said = made(tmp_path)
    trainer.hangs = True
    saving.pace.trainer_limit_s = lambda: 0.05  # type: ignore[method-assign]
    asyncio.run(saving.save_now(1))
    (event,) = said
    assert isinstance(event, CheckpointFailed)
    assert event.reason.startswith("the trainer did not answer within 0 s: it is still in a step")
    assert list(store.folder.iterdir()) == []


def test_the_outer_state_is_written_whole_even_if_the_trainer_is_given_up(tmp_path: Path) -> None:
    """Fault: an outer step changes the state while the thread still writes it."""
    saving, trainer, store, _ = made(tmp_path)
    trainer.hangs, gate, order = True, threading.Event(), list[str]()
    put: Callable[..., None] = store.write_outer

    def slow(*arguments: Any) -> None:
        assert gate.wait(10)
        put(*arguments)
        order.append("written")

    store.write_outer = slow  # type: ignore[method-assign]
    saving.pace.trainer_limit_s = lambda: 0.05  # type: ignore[method-assign]

    async def main() -> None:
        asyncio.get_running_loop().call_later(0.2, gate.set)
        await saving.save_now(1)
        order.append("returned")

    asyncio.run(main())
    assert order == ["written", "returned"]


def test_the_room_is_told_and_too_little_refused_with_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path / "absent" / "c", keep=3)
    elements = 10**6
    assert checkpoint_bytes(elements) == 20 * 10**6
    usage = shutil._ntuple_diskusage  # type: ignore[attr-defined]
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage(10**9, 0, 80 * 10**6))
    assert "about 20.0 MB each, the last 3 kept, at most 80.0 MB" in check_disk_room(store, elements)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage(10**9, 0, 79 * 10**6))
    with pytest.raises(HomeUnusable) as refused:
        check_disk_room(store, elements)
    assert "only 79.0 MB are free" in refused.value.found
    assert refused.value.fix.startswith("Free 1.00 MB")
    assert "--keep-checkpoints 1 takes 40.0 MB" in refused.value.fix


def test_what_is_there_already_counts_as_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saving, _, store, _ = made(tmp_path)
    asyncio.run(saving.save_now(1))
    held = store.held_bytes()
    assert held > 100
    usage = shutil._ntuple_diskusage  # type: ignore[attr-defined]
    needed = 4 * checkpoint_bytes(10**6)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage(10**9, 0, needed - held))
    check_disk_room(store, 10**6)
