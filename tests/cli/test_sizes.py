"""Amounts of data on the command line."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from peer.cli.join import command
from peer.cli.sizes import Size


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
    ],
)
def test_sizes_as_people_write_them(text: str, nbytes: int) -> None:
    assert Size().convert(text, None, None) == nbytes


@pytest.mark.parametrize("text", ["", "GB", "5 apples", "-5GB", "0", "0.1B", "5GBB", "1e9", "nan", "9999999TB", "٥GB"])
def test_others_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="no amount of data"):
        Size().convert(text, None, None)


def test_a_wrong_budget_is_told_before_anything_begins() -> None:
    result = CliRunner().invoke(command, ["a-ticket", "--monthly-upload", "much"])
    assert result.exit_code == 2
    assert "'much' is no amount of data. Write 500MB, 5GB or 1.5TB" in result.output
