"""The volunteer's upload quota: the count survives every end of the process, and payloads respect it."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path

import pytest

from peer.errors import PartnerRefused
from peer.node.upload_quota import SAVE_EVERY_S, SETTLE_S, UploadQuota, moment_of
from peer.observe import events
from peer.observe.status.codec import to_json
from peer.protocol.endpoints import HERE
from peer.protocol.messages import PeerId
from peer.protocol.policy.upload_quota import CONTROL_RATE, Moment, UploadLimits, on_the_line
from peer.protocol.wire.payload import BytesSource
from peer.transport.server.state_uploads import StateUploads
from peer.transport.wire.pacing import Pacer
from peer.transport.wire.payload_stream import Caps, Meter, send_payload

GB, MB = 10**9, 10**6
AFTER_A_START = round(CONTROL_RATE * SAVE_EVERY_S)
"""Bytes counted at a start, because they may have been sent since the file was last written."""


class Machine:
    """One home over several processes, with a clock. At first no time is left of the day, so that no control traffic is
    reserved."""

    def __init__(self, folder: Path, limits: UploadLimits) -> None:
        self.file = folder / "uploads.json"
        self.limits = limits
        self.today = date(2026, 11, 21)
        self.ticks = 0.0
        self.events: list[events.Event] = []
        self.said: list[str] = []
        self.changes = 0
        self.start()

    def start(self) -> UploadQuota:
        """Start another process without ending the former one."""
        self.budget = UploadQuota(
            self.limits,
            self.file,
            self.events.append,
            self.said.append,
            lambda: 0.0,
            lambda: self.ticks,
            lambda now: Moment(self.today, 0.0, 0.0),
            self._changed,
        )
        return self.budget

    def _changed(self) -> None:
        self.changes += 1

    def used(self) -> tuple[int, int]:
        used = to_json(self.budget.report())["used"]
        return used["day"], used["month"]

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, UploadLimits(day=10 * GB))


@pytest.fixture
def little(tmp_path: Path) -> Machine:
    return Machine(tmp_path, UploadLimits(day=10 * MB))


def send(budget: UploadQuota, nbytes: int, part: float = 1.0, *, giving: bool = False) -> None:
    """Send a payload in chunks of a gigabyte, optionally broken off after a part."""
    chunks = [GB] * (nbytes // GB)
    with budget.claim(nbytes, len(chunks), giving=giving) as sent:
        for chunk in chunks[: round(part * len(chunks))]:
            sent(chunk)


def test_what_was_sent_is_counted_and_what_broke_off_is_not(machine: Machine) -> None:
    send(machine.budget, 4 * GB)
    assert machine.used() == (on_the_line(4 * GB, 4),) * 2
    send(machine.budget, 4 * GB, 0.25)
    assert machine.used() == (on_the_line(4 * GB, 4) + on_the_line(GB, 1),) * 2


def test_a_payload_that_does_not_fit_is_refused_before_its_first_byte(machine: Machine) -> None:
    send(machine.budget, 4 * GB)
    used = machine.used()
    with pytest.raises(PartnerRefused) as refused:
        send(machine.budget, 6 * GB)
    assert refused.value.code == "budget"
    assert machine.used() == used


def test_killed_in_the_middle_of_a_payload_it_counts_whole(machine: Machine) -> None:
    with machine.budget.claim(4 * GB, 4, giving=False) as sent:
        sent(GB)
        machine.start()
        assert machine.used() == (on_the_line(4 * GB, 4) + AFTER_A_START,) * 2


def test_a_clean_end_keeps_the_control_traffic_too(machine: Machine) -> None:
    machine.budget.look()
    machine.ticks = 10.0
    machine.budget.close()
    machine.start()
    assert machine.used() == (round(10 * CONTROL_RATE),) * 2


def test_who_never_came_to_train_leaves_no_file(machine: Machine) -> None:
    machine.budget.close()
    assert not machine.file.exists()


def test_it_is_kept_now_and_then_without_a_payload(machine: Machine) -> None:
    machine.ticks = SAVE_EVERY_S - 1
    machine.budget.look()
    assert not machine.file.exists()
    machine.ticks = SAVE_EVERY_S
    machine.budget.look()
    assert json.loads(machine.file.read_bytes())["day"] == AFTER_A_START


def test_used_up_and_back_the_next_day(machine: Machine) -> None:
    budget = machine.budget
    budget.reserve_for_exchange(3 * GB)
    budget.look()
    assert (machine.kinds(), machine.changes) == ([], 0)
    for _ in range(3):
        send(budget, 3 * GB)
        budget.look()
    assert budget.blocked_reason() == "today's upload of 10 GB is used. Next exchange after 00:00"
    assert to_json(budget.report())["why"] == budget.blocked_reason()
    assert (machine.kinds(), machine.changes) == (["budget_used"], 1)
    machine.today = date(2026, 11, 22)
    budget.look()
    assert (machine.kinds(), machine.changes, budget.blocked_reason()) == (["budget_used", "budget_back"], 2, "")
    assert machine.used() == (0, 3 * on_the_line(3 * GB, 3))


def test_another_life_is_out_of_budget_from_its_start(machine: Machine) -> None:
    for _ in range(3):
        send(machine.budget, 3 * GB)
    machine.start().reserve_for_exchange(3 * GB)
    machine.budget.look()
    assert machine.kinds() == ["budget_used"]


def test_a_state_leaves_room_for_the_next_exchange(machine: Machine) -> None:
    machine.budget.reserve_for_exchange(3 * GB)
    send(machine.budget, 3 * GB, giving=True)
    assert machine.budget.refusal_reason() == ""
    machine.budget.rest_reasons.append(lambda: "quiet hours")
    assert machine.budget.refusal_reason() == "quiet hours"
    assert machine.budget.blocked_reason() == "", "an exchange under way is finished"
    machine.budget.rest_reasons.clear()
    send(machine.budget, 3 * GB, giving=True)
    assert machine.budget.refusal_reason() != ""
    with pytest.raises(PartnerRefused):
        send(machine.budget, GB, giving=True)
    send(machine.budget, 3 * GB)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b'{"date": "2026-11-21", "day": 5',
        b"[]",
        b'{"date": "2026-11-21", "day": -5, "month": 0}',
        b'{"date": "2026-11-21", "day": true, "month": 5}',
        b'{"date": "yesterday", "day": 5, "month": 5}',
        b"\xff" * 9000,
    ],
)
def test_a_torn_file_is_named_and_counts_as_all_used(machine: Machine, damaged: bytes) -> None:
    machine.file.write_bytes(damaged)
    machine.start()
    assert machine.used() == (10 * GB, 0)
    (lost,) = machine.events
    assert isinstance(lost, events.BudgetLost)
    assert str(machine.file) in lost.reason
    assert "delete the file" in machine.said[-1]
    machine.today = date(2026, 11, 22)
    assert machine.budget.blocked_reason() == ""


def test_a_link_in_its_place_is_not_followed(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text('{"date": "2026-11-21", "day": 0, "month": 0}')
    machine.file.symlink_to(tmp_path / "elsewhere")
    machine.start()
    assert machine.used()[0] == 10 * GB


def test_without_a_budget_a_torn_file_is_no_word_worth(tmp_path: Path) -> None:
    machine = Machine(tmp_path, UploadLimits())
    machine.file.write_bytes(b"{")
    machine.start()
    assert machine.events == []
    assert machine.used() == (0, 0)
    send(machine.budget, 4 * GB)
    assert machine.used() == (on_the_line(4 * GB, 4),) * 2


def test_a_disk_that_takes_nothing_is_told_once_and_counting_goes_on(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("no folder")
    machine = Machine(tmp_path / "elsewhere", UploadLimits(day=10 * GB))
    send(machine.budget, GB)
    send(machine.budget, GB)
    assert len(machine.said) == 1
    assert machine.used() == (2 * on_the_line(GB, 1),) * 2


# -- the clock on the wall ---------------------------------------------------------------------------------------------


@pytest.fixture
def berlin() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "CET-1CEST,M3.5.0,M10.5.0/3"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_days_are_those_of_local_time_and_may_have_25_hours() -> None:
    moment = moment_of(datetime(2026, 10, 25, 0, 30).timestamp())
    assert moment == Moment(date(2026, 10, 25), 24.5 * 3600, 6 * 86400 + 24.5 * 3600)
    last = moment_of(datetime(2026, 12, 31, 23, 59, 59).timestamp())
    assert last == Moment(date(2026, 12, 31), 1.0, 1.0)


# -- the transport keeps to it -----------------------------------------------------------------------------------------


def test_payloads_keep_to_the_budget(little: Machine) -> None:
    async def test() -> None:
        written = 0

        async def write(frame: bytes) -> None:
            nonlocal written
            written += len(frame)

        caps = Caps(Pacer(None), Pacer(None), Meter(budget=little.budget))
        await send_payload(write, BytesSource(bytes(8 * MB)), caps, 0.0)
        used, sent = little.used()[0], written
        assert sent <= used <= 1.05 * sent
        with pytest.raises(PartnerRefused):
            await send_payload(write, BytesSource(bytes(8 * MB)), caps, 0.0)
        assert (little.used()[0], written) == (used, sent)

    asyncio.run(test())


def test_a_transfer_that_breaks_off_counts_as_far_as_it_came(little: Machine) -> None:
    async def test() -> None:
        written = 0

        async def write(frame: bytes) -> None:
            nonlocal written
            written += len(frame)
            if written > 2 * MB:
                raise ConnectionResetError

        caps = Caps(Pacer(None), Pacer(None), Meter(budget=little.budget))
        with pytest.raises(ConnectionResetError):
            await send_payload(write, BytesSource(bytes(8 * MB)), caps, 0.0)
        assert written <= little.used()[0] <= 1.05 * written

    asyncio.run(test())


def test_joiners_hear_that_no_state_is_given(machine: Machine) -> None:
    async def test() -> None:
        giving = StateUploads(Caps(Pacer(None), Pacer(None), Meter(budget=machine.budget)))
        assert giving.busy_reason(PeerId("joiner"), HERE, proven=False) is None
        machine.budget.reserve_for_exchange(8 * GB)
        why, eta_s = giving.busy_reason(PeerId("joiner"), HERE, proven=False) or ("", 0.0)
        assert why == "today's upload of 10 GB is used. Next exchange after 00:00; ask another peer"
        assert eta_s > 0

    asyncio.run(test())


# -- with a meter of the line


def test_what_was_sent_today_is_what_the_lines_meter_shows_and_no_allowance(machine: Machine) -> None:
    shown = 0
    machine.budget.use_line_meter(lambda: shown)
    machine.ticks = 86_400.0
    machine.budget.look()
    assert machine.used() == (0, 0), "a day in which nothing was sent"
    shown = 41_472_000
    assert machine.used() == (41_472_000, 41_472_000)
    machine.ticks += 1
    send(machine.budget, 4 * GB)
    assert machine.used()[0] == shown + on_the_line(4 * GB, 4), "the line has not shown the payload yet"
    shown += 3 * GB
    assert machine.used()[0] == 41_472_000 + on_the_line(4 * GB, 4), "it is not counted twice"
    shown += GB + 30 * MB
    machine.ticks += SETTLE_S
    assert machine.used()[0] == shown, "once the line is still its meter is right"


def test_a_kill_counts_the_payload_and_an_allowance_and_a_clean_end_nothing_more(machine: Machine) -> None:
    machine.budget.use_line_meter(lambda: 5 * MB)
    machine.budget.look()
    with machine.budget.claim(4 * GB, 4, giving=False) as sent:
        sent(GB)
        machine.start()
        assert machine.used()[0] == 5 * MB + on_the_line(4 * GB, 4) + AFTER_A_START
    machine.budget.use_line_meter(lambda: 0)
    machine.budget.look()
    used = machine.used()
    machine.budget.close()
    machine.start()
    assert machine.used() == used


def test_what_is_kept_back_is_told_apart_from_what_was_sent() -> None:
    hour_left = Moment(date(2026, 11, 21), 3600.0, 3600.0)
    quota = UploadQuota(UploadLimits(day=GB), None, print, print, moment=lambda now: hour_left)
    quota.use_line_meter(lambda: 0)
    quota.reserve_for_exchange(MB, control=100.0)
    report = to_json(quota.report())
    assert (report["used"]["day"], report["kept_back"]) == (0, {"day": 360_000})
