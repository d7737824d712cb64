"""Checks the options of `peer join` with which a service is installed."""

from __future__ import annotations

from pathlib import Path

import click

from peer.errors import UsageError

TICKET = "ticket"
"""Placeholder for the ticket, which the service reads from a file."""
REFUSED = {
    "--home": "Name the service's home before the ticket: peer service install --home DIR TICKET",
    "--config": "Name the file first: peer --config FILE service install TICKET",
    "--leave-on-eof": "A service has no standard input, so it would leave at once.",
    "--help": "See: peer join --help",
}
INVITATION = "--invitation"


def check_join_options(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the options unchanged if `peer join` accepts them. Raises UsageError, also for an option that makes no
    sense for a service, and for a secret, because other users can see a command's arguments."""
    if not words:
        return ()
    from peer.cli.join import command as join

    for word in words:
        if (name := word.partition("=")[0]) in REFUSED:
            raise UsageError(f"a service cannot have {name}", REFUSED[name])
    _ensure_no_secret(words)
    try:
        context = join.make_context("peer join", [TICKET, *words])
    except click.UsageError as error:
        raise UsageError(f"peer join does not take this: {error.format_message()}", "See: peer join --help") from error
    if (more := context.params["ticket_or_manifest"][1:]) or TICKET in words:
        raise UsageError(
            f"this is no option of peer join: {' '.join(more)}", "E.g.: peer service install TICKET -- --lan"
        )
    _ensure_absolute(context)
    return words


def _ensure_no_secret(words: tuple[str, ...]) -> None:
    for word, following in zip(words, [*words[1:], "@"], strict=True):
        name, has_value, value = word.partition("=")
        if name != INVITATION:
            continue
        file = value if has_value else following
        if not file.startswith("@"):
            fix = "Write it into a file that only you can read: --invitation @/path/to/file"
            raise UsageError("an invitation in a service's options could be read by other users", fix)
        if file != "@":
            _ensure_absolute_path(Path(file[1:]), f"{INVITATION} @")


def _ensure_absolute(context: click.Context) -> None:
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if isinstance(value, Path) and _is_given(context, parameter):
            _ensure_absolute_path(value, f"{parameter.opts[0]} ")


def _ensure_absolute_path(path: Path, option: str) -> None:
    """Raise UsageError for a relative path, because the service manager starts a service in another folder."""
    if not path.is_absolute():
        raise UsageError(f"a service needs the whole path of {path}", f"Write: {option}{path.absolute()}")


def _is_given(context: click.Context, parameter: click.Parameter) -> bool:
    return context.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE
