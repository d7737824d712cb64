"""Findings about the network, from given measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.node.doctor.finding import Severity
from peer.node.doctor.network import MeasuredLine, OutsideLook, caps, clock, line, outside
from peer.ports.directory import DialReport
from peer.protocol.policy.fitness import Load

CLOSED = OutsideLook(
    reachable=False,
    why="0 of 2 peers that tried reached this one",
    port=4811,
    fixed_port=True,
    relays=2,
    mapping="no router in this network answers UPnP",
    host="192.168.7.2",
)
LOAD = Load(nbytes=10**7, round_s=30.0, again_s=30.0, waits=False, alone="solo")


def test_a_closed_home_is_a_warning_with_its_own_port_and_address() -> None:
    found = outside(CLOSED)
    assert found.severity is Severity.WARNING
    assert "2 relays of the run would take calls for it" in found.measured
    assert "no router in this network answers UPnP" in found.measured
    assert "forward TCP port 4811 to 192.168.7.2, then give --port 4811" in found.fix


def test_a_closed_home_without_a_relay_is_told_so() -> None:
    assert "no relay of the run has room" in outside(replace(CLOSED, relays=0)).measured


def test_an_open_machine_is_fine() -> None:
    assert outside(replace(CLOSED, reachable=True, why="1 of 1 reached")).measured == "yes: 1 of 1 reached"
    assert "router opened" in outside(replace(CLOSED, reachable=True, mapped=True)).measured


def test_a_look_that_nobody_could_take_is_no_verdict() -> None:
    found = outside(replace(CLOSED, reachable=None))
    assert found.severity is Severity.WARNING
    assert found.measured.startswith("not checked")


def test_a_clock_five_minutes_off_is_an_error() -> None:
    found = clock(DialReport({}, 300.0), 60.0)
    assert found.severity is Severity.ERROR
    assert "300 s behind the clocks of the others (at most 60 s are taken)" in found.measured
    assert "timedatectl" in found.fix


def test_a_right_clock_is_fine_and_an_unknown_one_is_not_checked() -> None:
    assert clock(DialReport({}, -0.4), 60.0).measured.startswith("0.40 s ahead of the run's nodes")
    assert clock(DialReport(), 60.0).severity is Severity.WARNING


def measured(direction: str, rate: float | None, nbytes: int = 10**6) -> MeasuredLine:
    return MeasuredLine(direction, rate, nbytes, "12D3KooWpeer", "nobody could be asked")


def test_an_upload_that_never_ends_in_time_is_an_error_with_both_numbers() -> None:
    found = line(measured("upload", 10**5), LOAD)
    assert found.severity is Severity.ERROR
    assert "10 MB take 100 s over 0.8 Mbit/s of upload, as measured with 12D3KooWpeer" in found.measured
    assert "a round is 30 s" in found.measured
    assert found.fix.startswith("Use another line")
    capped = line(replace(measured("upload", 10**5), cap=10**5), LOAD)
    assert capped.fix.startswith("Raise the cap")


def test_a_slow_download_is_a_warning_as_the_peer_may_be_slow() -> None:
    assert line(measured("download", 10**5), LOAD).severity is Severity.WARNING


@pytest.mark.parametrize("load", [LOAD, None])
def test_a_fast_line_is_fine(load: Load | None) -> None:
    assert line(measured("upload", 10**7), load).measured == "80.0 Mbit/s: 1.00 MB with 12D3KooWpeer"


def test_few_bytes_are_told_as_a_least_rate_and_judge_nothing() -> None:
    found = line(measured("upload", 10**4, nbytes=5000), LOAD)
    assert found.severity is Severity.OK
    assert found.measured.startswith("at least 0.1 Mbit/s")


def test_few_bytes_that_took_seconds_are_a_slow_line() -> None:
    assert line(measured("upload", 10**4, nbytes=40_000), LOAD).severity is Severity.ERROR


def test_a_line_that_was_not_measured_says_why() -> None:
    found = line(measured("upload", None), LOAD)
    assert found.severity is Severity.WARNING
    assert found.measured == "not checked: nobody could be asked"


def test_the_users_own_caps_are_judged_as_peer_join_does() -> None:
    assert caps(LOAD, 10**7, None) == []
    assert caps(None, 1.0, 1.0) == []
    found = caps(LOAD, 10**5, 10**5)
    assert [one.severity for one in found] == [Severity.ERROR, Severity.ERROR]
    assert "--max-upload" in found[0].measured
