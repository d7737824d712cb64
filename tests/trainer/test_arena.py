from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from peer.errors import HomeUnusable
from peer.ports.trainer import Counters
from peer.protocol.model.layout import Layout, TensorSpec
from peer.trainer.arena import ARENA, COUNTERS, Arena, CounterFile, read_counters

LAYOUT = Layout((TensorSpec("a", (3,)), TensorSpec("b", (2, 2)), TensorSpec("c", (5000,))), ((0, 2), (2, 3)))


def test_both_sides_see_the_same_slots(tmp_path: Path) -> None:
    daemon = Arena(tmp_path, LAYOUT, create=True)
    trainer = Arena(tmp_path, LAYOUT, create=False)
    trainer.out_slot(0).copy_(torch.arange(7.0))
    trainer.out_slot(1).fill_(2.0)
    daemon.in_slot(0).fill_(3.0)
    daemon.in_slot(1).fill_(4.0)
    assert daemon.out.tolist() == [*range(7), *[2.0] * 5000]
    assert trainer.inn.tolist() == [*[3.0] * 7, *[4.0] * 5000]
    assert (tmp_path / ARENA).stat().st_size == 2 * 4 * LAYOUT.elements


def test_making_it_again_keeps_what_is_there(tmp_path: Path) -> None:
    Arena(tmp_path, LAYOUT, create=True).out.fill_(1.5)
    assert bool((Arena(tmp_path, LAYOUT, create=True).out == 1.5).all())


def test_the_arena_has_disk_behind_it(tmp_path: Path) -> None:
    Arena(tmp_path, LAYOUT, create=True)
    assert (tmp_path / ARENA).stat().st_blocks * 512 >= 2 * 4 * LAYOUT.elements


def test_a_full_disk_is_told_with_the_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(HomeUnusable, match=r"B cannot be made: No space left") as caught:
        Arena(tmp_path, LAYOUT, create=True)
    assert "--home" in caught.value.fix


def test_counters_are_read_by_others_at_once(tmp_path: Path) -> None:
    assert read_counters(tmp_path, 2) == Counters(0, 0, (0, 0), 0.0, 0.0), "no trainer ever ran"
    counters = CounterFile(tmp_path, 2)
    counters.stepped(256, 1_500_000_000)
    counters.stepped(256, 500_000_000)
    counters.waited(250_000_000)
    counters.rebase(1, 256)
    assert read_counters(tmp_path, 2) == Counters(512, 2, (0, 256), 2.0, 0.25)


def test_counters_go_on_where_they_were(tmp_path: Path) -> None:
    CounterFile(tmp_path, 1).stepped(2**40, 1)
    again = CounterFile(tmp_path, 1)
    again.stepped(1, 1)
    assert again.tokens == read_counters(tmp_path, 1).tokens == 2**40 + 1


def test_a_base_neither_goes_back_nor_past_the_tokens(tmp_path: Path) -> None:
    counters = CounterFile(tmp_path, 1)
    counters.stepped(100, 1)
    counters.rebase(0, 60)
    for wrong in (59, 101):
        with pytest.raises(AssertionError):
            counters.rebase(0, wrong)


def test_a_damaged_counter_file_is_named_and_left_alone(tmp_path: Path) -> None:
    CounterFile(tmp_path, 1).stepped(256, 1)
    path = tmp_path / COUNTERS
    good = path.read_bytes()
    for bad in (good[:-8], good[:-3], good + b"\0" * 8, b"X" + good[1:], good[:8] + b"\2" + good[9:], b""):
        path.write_bytes(bad)
        for attempt in (lambda: read_counters(tmp_path, 1), lambda: CounterFile(tmp_path, 1)):
            with pytest.raises(HomeUnusable, match=str(path)):
                attempt()
        assert path.read_bytes() == bad
    path.write_bytes(good)
    with pytest.raises(HomeUnusable, match="2 fragment"):
        read_counters(tmp_path, 2)
