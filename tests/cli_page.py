"""docs/reference/cli.md, made from the commands themselves: the page and `--help` cannot disagree."""

from __future__ import annotations

from collections.abc import Iterator

import click

from peer.cli.main import peer

WIDTH_COLUMNS = 100
HEAD = """\
# Command line

<!-- Made from peer/cli by `python -m tests.generated --write`: edit there. -->

Every command has `--help` with an example. Commands that report something have `--json`, and all share one table of
[exit codes](exit-codes.md). An option on the command line takes precedence over its environment variable, the variable
over the [configuration file](../guides/leave-running.md), and the file over the manifest. Every option has a variable:
`PEER_MAX_UPLOAD` for `--max-upload`. The first Ctrl+C drains the daemon, and the second ends it at once. `peer-swarm`
and `python -P -m peer` are other names of the same program. Without `-P`, Python may load its first modules from the
current folder.
"""


def page() -> str:
    """Return the text of docs/reference/cli.md."""
    return HEAD + "".join(_section(context) for context in _contexts(_context(peer, "peer", None)))


def _contexts(context: click.Context) -> Iterator[click.Context]:
    """Yield this command, then its subcommands in the order of the help."""
    yield context
    group = context.command
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None, name
            yield from _contexts(_context(command, name, context))


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    return click.Context(
        command, info_name=name, parent=parent, terminal_width=WIDTH_COLUMNS, max_content_width=WIDTH_COLUMNS
    )


def _section(context: click.Context) -> str:
    return f"\n## {context.command_path}\n\n```text\n{context.get_help()}\n```\n"
