"""Receipts survive a kill, and a damaged file is refused as a whole."""

from __future__ import annotations

import functools
import io
import itertools
from pathlib import Path

import pytest

from peer.errors import HomeUnusable, ReceiptsBroken
from peer.observe.receipt_file import ReceiptFile, check_file, check_stream, copy_checked
from peer.protocol.pair.receipt import SwapOpinion
from peer.protocol.pair.receipt_chain import BrokenChain, framed
from peer.transport.signing import holds
from tests.support.signed_receipts import Signing, chained, countersigned, file_of

OWNER, PARTNER = Signing(), Signing()
KNOWING = functools.cache(holds)
"""Caches verified signatures."""
YES = SwapOpinion(100, accepted=True)
CHAIN = chained(OWNER, [countersigned(OWNER, PARTNER, round_, YES, YES) for round_ in range(3)])


def filled(path: Path, records: list[bytes] = CHAIN) -> ReceiptFile:
    file = ReceiptFile(path)
    assert list(file.read()) == []
    for record in records:
        file.append(record)
    return file


def test_what_was_appended_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "receipts.chain"
    filled(path, CHAIN[:2])
    file = ReceiptFile(path)
    assert list(file.read()) == CHAIN[:2]
    for record in CHAIN[2:]:
        file.append(record)
    assert path.read_bytes() == file_of(CHAIN)
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("kept", [1, 3, 4, 5, 200, len(framed(CHAIN[3])) - 1])
def test_a_kill_in_the_middle_of_a_write_costs_that_receipt_alone(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "receipts.chain"
    path.write_bytes(file_of(CHAIN[:3]) + framed(CHAIN[3])[:kept])
    assert check_file(path, holds, unfinished=True)[0].entries == 2
    file = ReceiptFile(path)
    assert list(file.read()) == CHAIN[:3]
    file.append(CHAIN[3])
    assert path.read_bytes() == file_of(CHAIN)


def test_every_changed_byte_is_found_and_its_entry_named() -> None:
    raw, begins = file_of(CHAIN), [0, *itertools.accumulate(len(framed(record)) for record in CHAIN)]
    assert check_stream(io.BytesIO(raw), KNOWING)[0].entries == 3
    for position in range(len(raw)):
        entry = sum(position >= begin for begin in begins) - 1
        for mask in (1, 0x80, 0xFF):
            changed = bytearray(raw)
            changed[position] ^= mask
            with pytest.raises(BrokenChain) as caught:
                check_stream(io.BytesIO(changed), KNOWING)
            assert caught.value.entry == entry, (position, caught.value)


@pytest.mark.parametrize("rest", [b"\0", b"\0\0\0\5abc", b"\xff" * 9])
def test_bytes_at_the_end_belong_to_an_entry(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "receipts.chain"
    path.write_bytes(file_of(CHAIN) + rest)
    with pytest.raises(ReceiptsBroken, match=f"entry 4: {len(rest)} bytes"):
        check_file(path, holds)


def test_files_that_are_no_chain_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    with pytest.raises(ReceiptsBroken, match="cannot read"):
        check_file(path, holds)
    for content in (b"", b"hello, this is a text", b"\0\0\0\0"):
        path.write_bytes(content)
        with pytest.raises(ReceiptsBroken):
            check_file(path, holds)


def test_a_copy_holds_the_complete_entries(tmp_path: Path) -> None:
    path, out = tmp_path / "receipts.chain", tmp_path / "copy"
    path.write_bytes(file_of(CHAIN) + b"\0\0\1")
    assert copy_checked(path, out, holds).entries == 3
    assert out.read_bytes() == file_of(CHAIN)
    with pytest.raises(HomeUnusable):
        copy_checked(path, out, holds)


def test_a_disk_that_does_not_take_it_leaves_the_chain_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "receipts.chain"
    file = ReceiptFile(path)
    with pytest.raises(HomeUnusable, match="cannot write"):
        file.append(CHAIN[0])
    path.parent.mkdir()
    for record in CHAIN:
        file.append(record)
    assert path.read_bytes() == file_of(CHAIN)


def test_receipts_behind_a_damaged_one_are_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "receipts.chain"
    raw = bytearray(file_of(CHAIN))
    raw[len(framed(CHAIN[0]))] = 0xFF
    path.write_bytes(raw)
    with pytest.raises(HomeUnusable, match="bytes that are no receipts"):
        list(ReceiptFile(path).read())
    assert path.read_bytes() == raw


def test_a_damaged_chain_is_moved_aside(tmp_path: Path) -> None:
    file = filled(tmp_path / "receipts.chain")
    file.set_aside()
    file.append(CHAIN[0])
    assert list(file.read()) == CHAIN[:1]
    assert (tmp_path / "receipts.chain.damaged").read_bytes() == file_of(CHAIN)
