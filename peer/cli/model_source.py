"""Options of the commands that read a run's model from a SOURCE, and the request made of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from peer.cli.durations import Duration
from peer.cli.options import guest_invitation
from peer.cli.printing import echo
from peer.run.home import KEY_FILE, default_home
from peer.user_folders import expand_user, temporary_folder

if TYPE_CHECKING:
    import torch

    from peer.result.model import SourceRequest

QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""Environment variables for the Hugging Face libraries, which read them when they are imported: no network access, no
progress bars, errors only."""
F = TypeVar("F", bound=Callable[..., Any])
Options = dict[str, Any]


def source_options(function: F) -> F:
    """Add the options that define how a SOURCE is read."""
    decorators = (
        click.option(
            "--home", type=click.Path(path_type=Path, file_okay=False), help="A home whose cache of files is used too."
        ),
        click.option(
            "--manifest",
            type=click.Path(path_type=Path, dir_okay=False),
            help="The run's manifest, for a checkpoint outside of a home. The run's files lie beside it.",
        ),
        click.option("--run", default="", metavar="ID", help="Beginning of the run's id, for a home with several."),
        click.option(
            "--donors",
            type=click.IntRange(1, 64),
            help="With a ticket of a run in pairs: take the mean of so many peers' states, each judged by its loss.  "
            "[default: up to 4]",
        ),
        click.option(
            "--wait",
            "wait_s",
            type=Duration(plain=True),
            default="2m",
            show_default=True,
            help="With a ticket: give up after so long without an answer, e.g. 5m.",
        ),
        guest_invitation,
        click.option(
            "--identity-path",
            type=click.Path(path_type=Path, dir_okay=False),
            help="With a ticket: the key file of the invited peer, or of the operator.  [default: identity.key in the "
            "home, with --invitation]",
        ),
        click.option(
            "--device",
            type=click.Choice(["auto", "cpu", "cuda"]),
            default="auto",
            show_default=True,
            help="Where the model is computed.",
        ),
    )
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


@contextlib.contextmanager
def request_of(
    options: Options, *, tokenizer: Literal["none", "copy", "open"], holdout: bool, computes: str = ""
) -> Iterator[SourceRequest]:
    """Make a request from the options, with a temporary folder that exists for the duration of the context. `computes`:
    see `SourceRequest`."""
    from peer.result.model import GuestRequest, SourceRequest

    os.environ.update(QUIET)
    named = {name: options[name] for name in ("home", "manifest", "run")}
    guest = GuestRequest(key=_key_of(options), **{name: options[name] for name in ("donors", "wait_s", "invitation")})
    with temporary_folder("peer-model-") as scratch:
        yield SourceRequest(
            scratch=Path(scratch),
            guest=guest,
            tokenizer=tokenizer,
            holdout=holdout,
            computes=computes,
            device=device_of(options),
            **named,
        )


def _key_of(options: Options) -> Path | None:
    """Return the key file with which a guest authenticates. None: a new key is used."""
    if options["identity_path"] is not None or options["invitation"] is None:
        named: Path | None = options["identity_path"]
        return named
    return expand_user(options["home"] or default_home()) / KEY_FILE


def device_of(options: Options) -> torch.device:
    """Return the device chosen by --device. Raises UsageError."""
    from peer.trainer.device import choose_device

    return choose_device(options["device"], "fp32").device


def say(line: str) -> None:
    """Print a progress line on stderr, so that stdout contains only the result."""
    echo(line, err=True)
