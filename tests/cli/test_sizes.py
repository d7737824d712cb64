"""Amounts of data on the command line."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from peer.cli.bootstrap import command as bootstrap
from peer.cli.doctor import command as doctor_command
from peer.cli.durations import Duration
from peer.cli.join import command
from peer.cli.sizes import ByteRate, Size
from peer.config.options import options_of

JOIN, DOCTOR = options_of(command), options_of(doctor_command)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("5GB", 5 * 10**9),
        ("5 gb", 5 * 10**9),
        ("1.5TB", 1_500_000_000_000),
        ("100", 100),
        ("7B", 7),
        ("2kB", 2000),
        ("1GiB", 2**30),
        ("0.5MiB", 2**19),
        ("1e6", 10**6),
        ("2.5e3kB", 2_500_000),
    ],
)
def test_sizes_as_people_write_them(text: str, nbytes: int) -> None:
    assert Size().convert(text, None, None) == nbytes


@pytest.mark.parametrize(
    "text", ["", "GB", "5 apples", "-5GB", "0", "0.1B", "5GBB", "1e", "e9", "nan", "9999999TB", "٥GB"]
)
def test_others_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="no amount of data"):
        Size().convert(text, None, None)


@pytest.mark.parametrize("text", ["1Kb", "10Mb", "2 Gb", "1Mib", "10Mbit", "10 mbit/s", "100Mbps", "8 bits", "1.5Mb/s"])
def test_bits_are_refused_by_name(text: str) -> None:
    with pytest.raises(click.BadParameter, match="counts bits"):
        ByteRate().convert(text, None, None)


def test_a_wrong_budget_is_told_before_anything_begins() -> None:
    result = CliRunner().invoke(command, ["a-ticket", "--monthly-upload", "much"])
    assert result.exit_code == 2
    assert "'much' is no amount of data. Write 500MB, 5GB or 1.5TB" in result.output


@pytest.mark.parametrize("text", ["1MB", "1MB/s", "1 MB/s", "1000000", "1e6", "1000kB"])
def test_rates_are_spelled_as_sizes(text: str) -> None:
    assert ByteRate().convert(text, None, None) == 10**6


AMOUNTS = {"max_upload", "max_download", "daily_upload", "monthly_upload", "cache_disk", "relay"}


@pytest.mark.parametrize("daemon", [command, bootstrap])
def test_every_option_of_bytes_takes_the_same_spelling(daemon: click.Command) -> None:
    options = {one.name: one for one in daemon.params if one.name in AMOUNTS}
    assert {"max_upload", "cache_disk", "relay"} <= set(options)
    for option in options.values():
        assert option.type.convert("1.5MB", option, None) == 1_500_000, option.name
        with pytest.raises(click.BadParameter, match=r"500kB|500MB"):
            option.type.convert("fast", option, None)


@pytest.mark.parametrize(("text", "seconds"), [("3", 3.0), ("3s", 3.0), ("2.5", 2.5), ("5m", 300.0), ("1h30m", 5400.0)])
def test_waits_take_seconds_or_a_unit(text: str, seconds: float) -> None:
    assert Duration(plain=True).convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["0", "0.5", "-3", "soon", "", "3 apples"])
def test_other_waits_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no time"):
        Duration(plain=True).convert(text, None, None)


@pytest.mark.parametrize("flag", sorted(JOIN.keys() & DOCTOR.keys()))
def test_doctor_spells_its_options_as_join_does(flag: str) -> None:
    join, doctor = JOIN[flag], DOCTOR[flag]
    assert type(doctor.type) is type(join.type)
    assert (doctor.metavar, doctor.multiple, doctor.is_flag) == (join.metavar, join.multiple, join.is_flag)
