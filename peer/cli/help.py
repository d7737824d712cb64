"""`peer help`: show the documentation in the terminal."""

from __future__ import annotations

from itertools import groupby

import click

from peer.cli.printing import echo


def _topics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from peer.help.pages import pages

    return [page.topic for page in pages() if page.topic.startswith(incomplete)]


@click.command("help", epilog="Example: peer help exit-codes 21")
@click.argument("topic", required=False, shell_complete=_topics)
@click.argument("section", required=False)
@click.pass_context
def command(context: click.Context, topic: str | None, section: str | None) -> None:
    """Show a page of the documentation, or one SECTION of it.

    Without a TOPIC all pages are listed. If no page has the name but a command does, the command's --help is shown."""
    from peer.cli.main import peer
    from peer.help.pages import page, pages

    if topic is None:
        echo(_list_of_pages())
    elif topic not in {one.topic for one in pages()} and (named := peer.get_command(context, topic)) is not None:
        echo(named.get_help(click.Context(named, info_name=topic, parent=context.parent)))
    else:
        found = page(topic)
        _show(found.text if section is None else found.section(section))


def _list_of_pages() -> str:
    from peer.help.pages import pages

    formatter = click.HelpFormatter()
    for kind, of_kind in groupby(pages(), key=lambda page: page.kind):
        with formatter.section(kind.capitalize()):
            formatter.write_dl([(page.topic, page.title) for page in of_kind])
    formatter.write("\n`peer help TOPIC` shows a page, and `peer COMMAND --help` the options of a command.")
    return formatter.getvalue().lstrip("\n")


def _show(markdown: str) -> None:
    """Print a text, with the terminal's pager if it is longer than the screen."""
    from rich.console import Console

    from peer.help.rendering import rendered

    text, terminal = rendered(markdown), Console()
    if terminal.is_terminal and text.count("\n") >= terminal.height:
        click.echo_via_pager(text)
    else:
        click.echo(text, nl=False)
