"""The options `--web`, `--web-name` and `--log` of a daemon, and the sockets of its page and metrics."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from peer.node.page import DaemonPages

F = TypeVar("F", bound=Callable[..., Any])
OPTION = "--web"
DEFAULT = "127.0.0.1:4880"
_OTHER_PORT = "Choose another --metrics-port, where 0 takes any free one, or another --metrics-host."
_ADDRESS = re.compile(r"(\S*:)?\d+")


class PagedCommand(click.Command):
    """A command whose option `--web` may lack its value: in `--web TICKET` the ticket is not taken for an address."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, after adding the default address to a `--web` without one."""
        return super().parse_args(
            ctx, [_with_default_address(*pair) for pair in zip(args, [*args, ""][1:], strict=True)]
        )


def _with_default_address(word: str, following: str) -> str:
    return f"{OPTION}={DEFAULT}" if word == OPTION and not _ADDRESS.fullmatch(following) else word


def web(function: F) -> F:
    """Add `--web` and `--web-name` to a `PagedCommand`, as `web` and `web_names`."""
    function = click.option(
        "--web-name",
        "web_names",
        multiple=True,
        metavar="NAME",
        help="Host name by which the page or the metrics are asked for, e.g. behind a proxy. Repeatable.",
    )(function)
    return click.option(
        OPTION,
        metavar="[HOST:PORT]",
        help=f"Serve a page for browsers there. Without an address: at {DEFAULT}.  [default: none]",
    )(function)


def log_to(function: F) -> F:
    """Add `--log`, as `log`."""
    return click.option(
        "--log",
        multiple=True,
        metavar="KIND[:PLACE]",
        help="Log the metrics to csv[:FILE], tensorboard[:FOLDER], trackio[:PROJECT] or wandb[:PROJECT]. Repeatable.",
    )(function)


def open_pages(
    address: str | None,
    names: tuple[str, ...],
    metrics_host: str = "",
    metrics_port: int | None = None,
    log: tuple[str, ...] = (),
) -> DaemonPages:
    """Bind the sockets of the requested page and metrics, and parse the trackers in `log`. Raises UsageError and
    AddressError."""
    from peer.node.page import DaemonPages

    web = metrics = None
    if address is not None:
        from peer.web.address import WebAddress
        from peer.web.page import WebPage

        web = WebPage(WebAddress.parse(address).bind(), names)
    if metrics_port is not None:
        from peer.web.address import WebAddress
        from peer.web.metrics import MetricsPage

        bound = WebAddress(metrics_host, metrics_port).bind("the metrics", _OTHER_PORT)
        metrics = MetricsPage(bound, names)
    if log:
        from peer.trackers.feed import Tracker

        return DaemonPages(web, metrics, tuple(Tracker.parse(one) for one in log))
    return DaemonPages(web, metrics)
