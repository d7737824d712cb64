"""`--web` with and without a value; invalid values are refused before the daemon is imported."""

from __future__ import annotations

import socket

import click
import pytest
from click.testing import CliRunner

from peer.cli.bootstrap import command as bootstrap
from peer.cli.web import DEFAULT, PagedCommand, open_pages, web
from peer.errors import AddressError
from peer.node.page import NO_PAGES
from tests.cli.test_import_time import HELP, loaded


@click.command("any", cls=PagedCommand)
@click.argument("ticket")
@click.option("--port")
@web
def probe(ticket: str, port: str | None, web: str | None, web_names: tuple[str, ...]) -> None:
    click.echo(f"{ticket} {port} {web} {','.join(web_names)}")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("peersw", "peersw None None "),
        ("peersw --web", f"peersw None {DEFAULT} "),
        ("--web peersw", f"peersw None {DEFAULT} "),
        ("--web @ticket", f"@ticket None {DEFAULT} "),
        ("--web --port 5 peersw", f"peersw 5 {DEFAULT} "),
        ("--web 127.0.0.1:80 peersw", "peersw None 127.0.0.1:80 "),
        ("--web 0 peersw", "peersw None 0 "),
        ("--web=[::1]:0 peersw --web-name a.example --web-name b", "peersw None [::1]:0 a.example,b"),
    ],
)
def test_the_value_may_be_missing(words: str, found: str) -> None:
    result = CliRunner().invoke(probe, words.split())
    assert result.output == f"{found}\n"


def test_a_taken_port_is_told_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        result = CliRunner().invoke(bootstrap, ["run.toml", "--web", f"127.0.0.1:{port}"])
    assert isinstance(result.exception, AddressError)
    assert open_pages(None, ()) == NO_PAGES


@pytest.mark.processes
def test_no_library_of_the_page_is_loaded_without_it() -> None:
    code = HELP.format(arguments=["join", "--help"]) + "\nimport peer.node.page"
    assert set(loaded(code)) & {"starlette", "uvicorn", "anyio", "h11"} == set()
