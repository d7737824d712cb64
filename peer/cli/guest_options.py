"""Options of `peer join` that limit how much the trainer disturbs the machine's owner."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from peer.cli.percentages import Percentage
from peer.guest.conditions import CONDITIONS

F = TypeVar("F", bound=Callable[..., Any])
COOLEST, HOTTEST = 40.0, 120.0
"""Degrees Celsius. A lower limit than the first would pause every machine under load."""


def _conditions(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Parse the value of `--when`. Raises UsageError."""
    from peer.guest.conditions import parse_conditions

    return () if value is None else parse_conditions(value)


def guest(function: F) -> F:
    """Add these options. The decorated function gets them as one `GuestOptions` in the parameter `guest`."""

    @functools.wraps(function)
    def with_guest(
        *arguments: Any,
        priority: str,
        cpu: float,
        gpu: float,
        when: tuple[str, ...],
        max_temperature: float | None,
        **options: Any,
    ) -> Any:
        from peer.guest.options import GuestOptions

        chosen = GuestOptions(
            low_priority=priority == "low", cpu=cpu, gpu=gpu, when=when, max_temperature=max_temperature
        )
        return function(*arguments, guest=chosen, **options)

    for add in reversed(_OPTIONS):
        with_guest = add(with_guest)
    return with_guest  # type: ignore[return-value]


_OPTIONS = (
    click.option(
        "--priority",
        type=click.Choice(["low", "normal"]),
        default="low",
        show_default=True,
        help="Of the trainer. At low priority your programs come first.",
    ),
    click.option(
        "--cpu",
        type=Percentage(),
        default="100%",
        metavar="PERCENT",
        show_default=True,
        help="Share of the machine's processor cores that the trainer may use, e.g. 50%.",
    ),
    click.option(
        "--gpu",
        type=Percentage(),
        default="100%",
        metavar="PERCENT",
        show_default=True,
        help="Share of the time that the trainer may use the GPU, e.g. 80%.",
    ),
    click.option(
        "--when",
        callback=_conditions,
        metavar="CONDITION,…",
        help=f"Train only while these hold: {', '.join(CONDITIONS)}. With commas between.",
    ),
    click.option(
        "--max-temperature",
        type=click.FloatRange(COOLEST, HOTTEST),
        metavar="DEGREES",
        help="Pause above this temperature of processor or GPU, in degrees Celsius, e.g. 85.",
    ),
)
