"""Memory and disk compared with a run's need, from given facts."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.node.doctor.finding import Severity
from peer.node.doctor.room import DiskNeed, disk, disk_need, held_disk, memory
from peer.protocol.messages import RunId
from peer.run.manifest import default_text, parse_manifest
from peer.run.memory import memory_need
from peer.run.options import PeerOptions

MANIFEST = parse_manifest(default_text().encode())
NEED = DiskNeed(checkpoints=4 * 10**9, files=10**9, exchange=10**9)


def test_enough_memory_is_fine_and_both_numbers_are_told() -> None:
    found = memory(8 * 10**9, MANIFEST, "cpu")
    assert found.severity is Severity.OK
    assert "8.00 GB are free, the run takes about " in found.measured


def test_too_little_memory_is_an_error_that_says_how_much_to_free() -> None:
    free = memory_need(MANIFEST).total - 10**6
    found = memory(free, MANIFEST, "cpu")
    assert found.severity is Severity.ERROR
    assert found.fix.startswith("Free 1 MB (close other programs")


def test_memory_without_a_run() -> None:
    assert memory(8 * 10**9).severity is Severity.OK
    assert memory(10**8).severity is Severity.WARNING


def test_a_disk_with_room_is_fine(tmp_path: Path) -> None:
    assert disk(tmp_path, 6 * 10**9, NEED).severity is Severity.OK


def test_a_full_disk_is_an_error_that_says_how_much_to_free(tmp_path: Path) -> None:
    found = disk(tmp_path, 10**9, NEED)
    assert found.severity is Severity.ERROR
    assert "1.00 GB are free" in found.measured
    assert (
        "the run takes at most 6.00 GB, estimated (checkpoints 4.00 GB, files 1.00 GB, exchanges 1.00 GB)"
        in found.measured
    )
    assert found.fix.startswith("Free 5.00 GB there")


def test_what_lies_there_already_is_not_needed_again(tmp_path: Path) -> None:
    assert disk(tmp_path, 3 * 10**9, NEED, held=3 * 10**9).severity is Severity.OK


def test_a_disk_without_a_run(tmp_path: Path) -> None:
    assert disk(tmp_path, 10**10).severity is Severity.OK
    assert disk(tmp_path, 10**8).severity is Severity.WARNING
    assert disk(tmp_path, None).severity is Severity.WARNING


@pytest.mark.parametrize("kept", [1, 3])
def test_the_need_grows_with_the_checkpoints_that_are_kept(tmp_path: Path, kept: int) -> None:
    need = disk_need(MANIFEST, PeerOptions(home=tmp_path, run_id=RunId(bytes(32)), checkpoints_kept=kept))
    assert need.checkpoints % (kept + 1) == 0
    assert need.exchange > 0
    assert held_disk(tmp_path / "nowhere", kept) == 0
