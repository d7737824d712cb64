"""The contract of a volunteer with a run is told and agreed to once."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from peer.errors import DataError, JoinDeclined, UsageError
from peer.join.contract import AGREED, JoinContract, agree
from peer.join.preflight import check_cuda, check_data_folder
from peer.observe.question import read_answer

CONTRACT = JoinContract(
    run="demo (00ff)",
    operator="12D3KooW",
    model="llama",
    parameters=1_234_567,
    data="the Python standard library of this machine",
    memory_bytes=600 * 10**6,
    disk_bytes=40 * 10**6,
    bytes_an_hour=10**7,
)


class Person:
    def __init__(self, answer: bool | None) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def ask(self, question: str) -> bool | None:
        self.asked.append(question)
        return self.answer


def agreed(folder: Path, person: Person | None, warnings: list[str] | None = None) -> list[str]:
    said: list[str] = []
    asyncio.run(agree(CONTRACT, folder, None if person is None else person.ask, said.append, warnings or []))
    return said


def test_a_volunteer_is_asked_once(tmp_path: Path) -> None:
    person = Person(True)
    said = agreed(tmp_path, person)
    assert "model     llama, 1,234,567 parameters" in said
    assert "an hour   10.0 MB each way" in said
    assert json.loads((tmp_path / AGREED).read_text())["parameters"] == 1_234_567
    assert agreed(tmp_path, person) == []
    assert len(person.asked) == 1


def test_a_volunteer_that_declines_is_asked_again_next_time(tmp_path: Path) -> None:
    person = Person(False)
    for _ in range(2):
        with pytest.raises(JoinDeclined, match="demo"):
            agreed(tmp_path, person)
    assert len(person.asked) == 2
    assert not (tmp_path / AGREED).exists()


@pytest.mark.parametrize("person", [None, Person(None)])
def test_without_a_person_the_contract_is_told_and_kept(tmp_path: Path, person: Person | None) -> None:
    assert agreed(tmp_path, person)
    assert (tmp_path / AGREED).exists()


def test_a_warning_is_asked_about_on_every_start(tmp_path: Path) -> None:
    person = Person(True)
    agreed(tmp_path, person)
    assert agreed(tmp_path, person, ["notes/id_rsa looks like a secret"]) == ["notes/id_rsa looks like a secret"]
    assert len(person.asked) == 2


@pytest.mark.parametrize(
    ("typed", "agrees"), [(b"y\n", True), (b"Yes\n", True), (b"n\n", False), (b"\n", False), (b"", False)]
)
def test_only_yes_agrees(typed: bytes, agrees: bool) -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, typed)
        os.close(writing)
        assert asyncio.run(read_answer(reading, 5.0)) is agrees
    finally:
        os.close(reading)


def test_silence_means_no() -> None:
    reading, writing = os.pipe()
    try:
        assert asyncio.run(read_answer(reading, 0.01)) is False
    finally:
        os.close(reading)
        os.close(writing)


def test_a_missing_device_is_refused() -> None:
    with pytest.raises(UsageError, match="no CUDA device"):
        check_cuda(drivers=())


def test_an_unusable_data_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is empty"):
        check_data_folder(tmp_path)
    with pytest.raises(DataError, match="cannot be read: No such file"):
        check_data_folder(tmp_path / "missing")
    (tmp_path / "file").write_text("a")
    with pytest.raises(DataError, match="cannot be read: Not a directory"):
        check_data_folder(tmp_path / "file")
    check_data_folder(tmp_path)
