from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from peer.cli.guest_options import guest
from peer.cli.percentages import Percentage
from peer.guest.options import GuestOptions


@pytest.mark.parametrize(("text", "share"), [("50%", 0.5), ("12.5 %", 0.125), ("0.5", 0.5), (".5", 0.5), ("1", 1.0)])
def test_shares_are_read_as_people_write_them(text: str, share: float) -> None:
    assert Percentage().convert(text, None, None) == share


@pytest.mark.parametrize(
    ("text", "told"),
    [("50", "Did you mean 50%?"), ("0%", "'0%' is 0%"), ("120%", "'120%' is 120%"), ("half", "'half'"), ("-1", "'-1'")],
)
def test_what_is_no_share_is_named(text: str, told: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        Percentage().convert(text, None, None)
    assert told in caught.value.message


def chosen(*arguments: str) -> GuestOptions:
    found: list[GuestOptions] = []

    @click.command()
    @guest
    def command(guest: GuestOptions) -> None:
        found.append(guest)

    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    return found[0]


def test_a_trainer_is_a_guest_unless_it_is_told_otherwise() -> None:
    assert chosen() == GuestOptions(low_priority=True)
    assert chosen("--priority", "normal") == GuestOptions()


def test_all_that_a_volunteer_may_ask_of_a_guest() -> None:
    given = chosen("--cpu", "50%", "--gpu", "80%", "--when", "idle,plugged-in", "--max-temperature", "85")
    assert given == GuestOptions(low_priority=True, cpu=0.5, gpu=0.8, when=("idle", "plugged-in"), max_temperature=85.0)
