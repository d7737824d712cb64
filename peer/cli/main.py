"""The entry of the command line. Commands are imported when they are called, so that `--help` is quick. A PeerError is
printed with its reason and fix, and its exit code becomes that of the process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from click.exceptions import NoSuchCommand

from peer import __version__
from peer.cli.completion import install_completion
from peer.cli.printing import echo
from peer.cli.systems import check_system
from peer.early_signals import INTERRUPTED_EXIT
from peer.errors import PeerError, SystemUnsupported
from peer.observe.formatting import harmless
from peer.observe.output import OutputFailed, output_lost

COMMANDS = {
    "join": "Take part in a run.",
    "doctor": "Find what keeps this machine out of a run.",
    "status": "Tell what the daemon is doing.",
    "pause": "Stand still for a while.",
    "resume": "Resume after a pause.",
    "leave": "End the daemon cleanly.",
    "bootstrap": "Be the entry to a run: manifest, ticket, first state.",
    "eval": "Measure the loss of a run's model.",
    "generate": "Continue a text with a run's model.",
    "export": "Write a run's model for other programs.",
    "manifest": "Make, check, sign and show manifests.",
    "ticket": "Show what a ticket holds.",
    "tokenizer": "Make a tokenizer from texts.",
    "data": "Make token shards from texts.",
    "contribution": "Show and verify receipts of exchanges.",
    "config": "Show and change the configuration file.",
    "service": "Keep a peer running, by systemd.",
    "uninstall": "Delete what this program wrote for you.",
    "id": "Show this peer's identity.",
    "swarm": "Run a complete swarm on this machine.",
    "plan": "Plan a run: method, rates, loss, bytes, days.",
    "compare": "Play several methods at equal tokens.",
    "sweep": "Play a grid of methods, settings and seeds.",
    "plot": "Draw the loss curves of reports.",
    "simulate": "Plan a run by arithmetic: bandwidth, waiting.",
    "bench": "Measure codecs, exchange and trainer here.",
    "help": "Show the documentation.",
}
MODULES = {"id": "identity"}
OWN_CONFIG = {"config", "help"}
"""Commands that have to work even when the configuration file is broken."""


class LazyGroup(click.Group):
    """A group that imports `peer.cli.<command>` only when that command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"peer.cli.{MODULES.get(name, name)}")
        from peer.config.loading import prepare

        return prepare(module.command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, and set its defaults from the configuration file.

        The error for an unknown name suggests similar commands."""
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except NoSuchCommand as error:
            raise NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None
        if name is not None and command is not None and not ctx.resilient_parsing and "--help" not in rest:
            from peer.config.loading import give_defaults, warnings_for

            for warning in warnings_for(self, ctx, command):
                echo(warning, err=True)
            if name not in OWN_CONFIG and "--config" not in rest:
                ctx.default_map = give_defaults(self, ctx, name, command)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, epilog="Example: peer join TICKET. Exit codes: peer help exit-codes")
@click.version_option(__version__, prog_name="peer")
@install_completion
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="PEER_CONFIG",
    metavar="FILE",
    help="Configuration file.  [default: PEER_CONFIG, else ~/.config/peer/config.toml]",
)
def peer(config: Path | None) -> None:
    """Train one language model together over the ordinary internet."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code. An unexpected exception shows as a traceback and exits with 1."""
    try:
        check_system()
        code = peer.main(args=arguments, prog_name="peer", standalone_mode=False)
        sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED_EXIT)
    except click.ClickException as error:
        _with_origin(error).show()
        sys.exit(error.exit_code)
    except OutputFailed as error:
        lost = output_lost(error)
        echo(error_text(lost), err=True)
        sys.exit(lost.exit_code)
    except SystemUnsupported as error:
        echo(f"error: {error.found}. {error.fix} (exit code {error.exit_code})", err=True)
        sys.exit(error.exit_code)
    except PeerError as error:
        echo(error_text(error), err=True)
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def _with_origin(error: click.ClickException) -> click.ClickException:
    """Return the error about a wrong value, extended by the source of the value if it does not come from the command
    line."""
    if not isinstance(error, click.BadParameter) or error.ctx is None:
        return error
    from peer.config.loading import READ
    from peer.config.report import origin_of

    if not (origin := origin_of(error, error.ctx.meta.get(READ))):
        return error
    return click.BadParameter(f"{error.message} ({origin})", error.ctx, error.param, error.param_hint)


def error_text(error: PeerError) -> str:
    """Return the text that is printed on stderr for an error."""
    lines = [f"error: {error.found}", f"  why: {error.why}", f"  fix: {error.fix}", f"  see: {error.page}"]
    return harmless("\n".join(lines))
