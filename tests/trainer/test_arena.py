from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from peer.errors import HomeUnusable
from peer.observe.totals import Totals, ledger
from peer.ports.trainer import Counters
from peer.protocol.model.layout import Layout, TensorSpec
from peer.trainer.arena import ARENA, COUNTERS, Arena, CounterFile, read_counters, recover_counters

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


@pytest.mark.parametrize("lost", [b"", bytes(8 * 9), None, "older"])
def test_counters_lost_by_a_power_cut_go_on_where_the_journal_is(tmp_path: Path, lost: bytes | str | None) -> None:
    path, elements = tmp_path / COUNTERS, (10, 3)
    counters = CounterFile(tmp_path, 2)
    counters.stepped(256, 1_000_000_000)
    older = path.read_bytes()
    counters.stepped(744, 1)
    # the journal: fragment 0 exchanged at 1,000 tokens, and fragment 1 at 600
    totals = Totals(upto={0: 1000, 1: 600}, applied=1000 * 10 + 600 * 3)
    if lost is None:
        path.unlink()
    else:
        path.write_bytes(older if isinstance(lost, str) else lost)
    said = recover_counters(tmp_path, 2, totals.upto)
    assert "power loss: the count goes on at 1,000 tokens" in said
    found = read_counters(tmp_path, 2)
    assert (found.tokens, found.base) == (1000, (1000, 600))
    assert found.steps == (1 if lost == "older" else 0)
    book = ledger(totals, found.tokens, found.base, elements)
    assert (book.imbalance, book.outstanding) == (0, 400 * 3), "promise 2"
    CounterFile(tmp_path, 2).stepped(5, 1)
    assert read_counters(tmp_path, 2).tokens == 1005
    assert recover_counters(tmp_path, 2, totals.upto) == ""


def test_counters_ahead_of_the_journal_stay_as_a_kill_left_them(tmp_path: Path) -> None:
    counters = CounterFile(tmp_path, 2)
    counters.stepped(256, 1)
    counters.rebase(0, 100)
    before = (tmp_path / COUNTERS).read_bytes()
    assert recover_counters(tmp_path, 2, {0: 256, 1: 256}) == "", "the base moves after the journal: a kill between"
    assert (tmp_path / COUNTERS).read_bytes() == before
    (tmp_path / COUNTERS).unlink()
    assert recover_counters(tmp_path, 2, {}) == "", "a first start"
    assert not (tmp_path / COUNTERS).exists()


def test_other_damage_than_a_power_cuts_needs_a_person(tmp_path: Path) -> None:
    path = tmp_path / COUNTERS
    for bad in (b"X" * 72, b"\0" * 80):
        path.write_bytes(bad)
        with pytest.raises(HomeUnusable, match="damaged") as caught:
            recover_counters(tmp_path, 2, {0: 5})
        assert f"mv {path} {path}.damaged" in caught.value.fix
        assert path.read_bytes() == bad


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
