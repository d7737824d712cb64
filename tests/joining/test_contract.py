"""The contract of a volunteer with a run must be shown and agreed to once."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from peer.clock.local_time import local_time
from peer.clock.quiet_hours import QuietHours
from peer.errors import DataError, JoinDeclined, UsageError
from peer.guest.options import GuestOptions
from peer.joining.contract import AGREED, JoinContract, agree, contract_of
from peer.joining.preflight import check_cuda, check_data_folder
from peer.observe.question import read_answer
from peer.protocol.policy.upload_quota import DAY_S, UploadLimits, control_rate
from peer.run.home import RunFolder
from peer.run.manifest import SignedManifest, default_text, derive
from peer.run.options import PeerOptions

CONTRACT = JoinContract(
    run="demo (00ff)",
    operator="12D3KooW",
    model="llama",
    parameters=1_234_567,
    data="the Python standard library of this machine",
    memory_bytes=600 * 10**6,
    disk_bytes=40 * 10**6,
    bytes_an_hour=10**7,
    device="cpu",
    threads=3,
    bytes_up_a_day=984 * 10**6,
    bytes_down_a_day=984 * 10**6,
    upload_limit=None,
    bytes_a_sync=800_000,
    ends_at=None,
    length="after 40 rounds, which last 200 min",
    worth="not known for 1.23 M parameters",
    log="/home/ada/peer.log",
    guest="to all programs",
    summary=True,
)


class Person:
    def __init__(self, answer: bool | None) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def ask(self, question: str) -> bool | None:
        self.asked.append(question)
        return self.answer


def agreed(
    folder: Path, person: Person | None, secrets: list[str] | None = None, contract: JoinContract = CONTRACT
) -> list[str]:
    said: list[str] = []
    asyncio.run(agree(contract, folder, None if person is None else person.ask, said.append, secrets))
    return said


def test_a_volunteer_is_asked_once(tmp_path: Path) -> None:
    person = Person(True)
    said = agreed(tmp_path, person)
    assert "model     llama, 1,234,567 parameters" in said
    assert "device    cpu, 3 threads" in said
    assert (
        "a day     about 984.0 MB up and 984.0 MB down, estimated; more while joiners fetch the state from this peer"
        in said
    )
    assert "ends      after 40 rounds, which last 200 min; sooner when you leave" in said
    assert "log       /home/ada/peer.log" in said
    assert json.loads((tmp_path / AGREED).read_text())["parameters"] == 1_234_567
    assert agreed(tmp_path, person) == []
    assert len(person.asked) == 1


SIGNED = {
    clock: SignedManifest(derive(default_text(), [f"sync.clock={clock}", "sync_every=300"]).encode(), b"")
    for clock in ("seconds", "steps")
}


def terms(clock: str, start: float = 0.0, **options: Any) -> dict[str, str]:
    """Return the terms of the default run with this clock."""
    signed = SIGNED[clock]
    chosen = PeerOptions(home=Path("home"), run_id=signed.run_id, device="cpu", threads=3, **options)
    return dict(contract_of(signed, chosen, "", start=start, folder=RunFolder(Path("/home/ada"))).terms())


def test_it_tells_whether_a_node_hears_of_this_peer() -> None:
    assert terms("seconds")["tells"].startswith("the operator's node hears every minute or two")
    assert terms("seconds", summary=False)["tells"].startswith("the operator's node nothing")


def test_a_run_in_seconds_tells_its_day_and_its_end() -> None:
    told = terms("seconds")
    assert (told["device"], told["log"]) == ("cpu, 3 threads", "/home/ada/peer.log")
    assert re.fullmatch(r"about \d+\.\d MB up and \d+\.\d MB down, estimated; more while .*", told["a day"])
    assert told["ends"] == "after 80 rounds, which last 6 h 40 min; sooner when you leave"
    begun = terms("seconds", start=1795648000.0)
    assert begun["ends"] == f"on {local_time(1795648000.0 + 80 * 300)}, {told['ends']}"


def test_how_the_trainer_gives_way_is_told() -> None:
    assert terms("seconds")["gives way"] == "to no program (--priority normal)"
    guest = GuestOptions(low_priority=True, cpu=0.5, when=("idle", "plugged-in"), max_temperature=80)
    told = terms("seconds", guest=guest, speed=0.25, quiet_hours=QuietHours.parse("22:00-07:00"))["gives way"]
    assert told.split("; ") == [
        "to all programs",
        "trains on 50% of the cores",
        "trains on 25% of the time",
        "trains only while idle, plugged-in",
        "pauses above 80 °C",
        "pauses every day 22:00-07:00",
    ]


def test_the_day_holds_what_the_exchanges_and_the_small_messages_take() -> None:
    options = PeerOptions(home=Path("home"), run_id=SIGNED["seconds"].run_id)
    contract = contract_of(SIGNED["seconds"], options, "")
    assert contract.bytes_up_a_day == contract.bytes_down_a_day
    expected = 1.041 * 288 * contract.bytes_a_sync + control_rate(300.0) * DAY_S
    assert contract.bytes_up_a_day == pytest.approx(expected, rel=0.01)


def test_an_upload_limit_below_the_need_is_told() -> None:
    told = terms("seconds", uploads=UploadLimits(day=10**6))["a day"]
    assert told.startswith("at most 1.00 MB up, your limit (the run wants ")
    assert terms("seconds", uploads=UploadLimits(day=10**12))["a day"].startswith("about ")


def test_a_run_in_steps_claims_no_day_and_no_end() -> None:
    told = terms("steps", start=1795648000.0)
    assert told["a day"].startswith("not known, for rounds are in inner steps: ")
    assert told["ends"].startswith("after 80 rounds of about 300 inner steps, whose time depends on the machines")


def test_the_kept_contract_is_that_of_the_last_start_and_of_the_first_yes(tmp_path: Path) -> None:
    first = asyncio.run(agree(CONTRACT, tmp_path, None, str)).agreed_at
    later = dataclasses.replace(CONTRACT, threads=1)
    told = asyncio.run(agree(later, tmp_path, None, str))
    kept = json.loads((tmp_path / AGREED).read_text())
    assert (kept["threads"], kept["agreed_at"]) == (1, first)
    shown = dict(told.terms)
    assert shown["device"] == "cpu, 1 thread"
    assert shown["agreed"] == f"on {local_time(first)}"


def test_an_agreement_of_an_older_version_holds(tmp_path: Path) -> None:
    """Older versions stored neither a time nor the largest agreed amounts."""
    (tmp_path / AGREED).write_text(json.dumps(dataclasses.asdict(CONTRACT)))
    person = Person(False)
    assert agreed(tmp_path, person) == []
    assert person.asked == []


@pytest.mark.parametrize("content", ["{}", "[]", "{", '{"covered": 5}', '{"agreed_at": "never"}'])
def test_an_agreement_that_names_no_terms_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / AGREED).write_text(content)
    person = Person(True)
    assert agreed(tmp_path, person)
    assert len(person.asked) == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"memory_bytes": 601 * 10**6}, "memory about 601.0 MB"),
        ({"disk_bytes": 50 * 10**6}, "disk at most 50.0 MB, estimated"),
        ({"bytes_up_a_day": 985 * 10**6}, "a day about 985.0 MB up"),
    ],
)
def test_an_update_that_takes_more_is_asked_about(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    agreed(tmp_path, Person(True))
    more = dataclasses.replace(CONTRACT, **change)
    with pytest.raises(JoinDeclined, match="nobody can be asked"):
        agreed(tmp_path, Person(None), contract=more)
    said = agreed(tmp_path, Person(True), contract=more)
    assert said[0].startswith("the run takes more than you agreed to on ")
    assert told in said[0]
    assert agreed(tmp_path, Person(None)) == [], "less than was agreed to"
    assert agreed(tmp_path, Person(None), contract=more) == []


def test_a_volunteer_that_declines_is_asked_again_next_time(tmp_path: Path) -> None:
    person = Person(False)
    for _ in range(2):
        with pytest.raises(JoinDeclined, match="demo"):
            agreed(tmp_path, person)
    assert len(person.asked) == 2
    assert not (tmp_path / AGREED).exists()


def test_without_a_person_nothing_is_agreed_to(tmp_path: Path) -> None:
    with pytest.raises(JoinDeclined, match="nobody can be asked") as raised:
        agreed(tmp_path, Person(None))
    assert "--yes" in raised.value.fix
    assert not (tmp_path / AGREED).exists()
    assert agreed(tmp_path, None), "--yes was given"
    assert agreed(tmp_path, Person(None)) == [], "it holds at a restart"


def test_a_new_secret_is_asked_about(tmp_path: Path) -> None:
    agreed(tmp_path, Person(True), ["id_rsa"])
    warned = "these look like secrets, and would be trained on: id_rsa"
    assert agreed(tmp_path, Person(None), ["id_rsa"]) == [warned], "told at every start"
    with pytest.raises(JoinDeclined, match="nobody can be asked"):
        agreed(tmp_path, Person(None), ["id_rsa", "notes/b.pem"])
    with pytest.raises(JoinDeclined, match="you did not agree"):
        agreed(tmp_path, Person(False), ["id_rsa", "notes/b.pem"])
    agreed(tmp_path, Person(True), ["id_rsa", "notes/b.pem"])
    agreed(tmp_path, Person(None), ["notes/b.pem"])


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
