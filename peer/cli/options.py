"""Options that several commands share, and checks of their values."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from peer.cli.printing import echo
from peer.cli.sizes import ByteRate, Size
from peer.errors import OutputLost, UsageError, file_advice, for_shell
from peer.run.home import default_home

if TYPE_CHECKING:
    from peer.identity import Identity

F = TypeVar("F", bound=Callable[..., Any])
PRESET_HELP = "Synchronization preset, as gossip or diloco. All of them: peer help presets"


def _checked(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse invalid addresses immediately, before the seconds in which the daemon is loaded. Raises AddressError."""
    if values:
        from peer.discovery import multiaddr as address

        check = {
            "initial_peers": address.check_peers,
            "host_maddrs": address.check_listen,
            "announce_maddrs": address.check_announced,
        }
        assert parameter.name is not None
        check[parameter.name](values)
    return values


def home(function: F) -> F:
    """Add `--home`."""
    return click.option(
        "--home",
        type=click.Path(path_type=Path, file_okay=False, readable=False),  # commands report unreadable folders
        envvar="PEER_HOME",
        default=default_home,
        help="Folder of key, runs and checkpoints.  [default: PEER_HOME, else ~/.local/share/peer]",
    )(function)


def identity_path(function: F) -> F:
    """Add `--identity-path`."""
    return click.option(
        "--identity-path",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="PEER_IDENTITY_PATH",
        help="The key file.  [default: identity.key in the home]",
    )(function)


def signing_key(home: Path, identity_path: Path | None, *, make: bool = False) -> Identity:
    """Return the key with which a command signs: --identity-path, else the home's. Raises IdentityError if there is
    none.

    `make`: create the home's key if it has none, as for an operator's first command. A file named by --identity-path
    has to exist: a key created because of a mistyped path would sign as a peer that no run knows."""
    from peer import identity as identities
    from peer.run.home import Home
    from peer.user_folders import expand_user

    if identity_path is not None:
        return identities.load(expand_user(identity_path))
    path = Home(home, make=make).identity
    if make:
        if not os.path.lexists(path):
            echo(f"this home has no key yet: making {path}", err=True)
        return identities.load_or_create(path)
    return identities.load(
        path,
        "Name the operator's --home, or its key file with --identity-path: this command makes none. Make a home's new "
        f"key with: peer id new --home {for_shell(path.parent)}",
    )


def initial_peers(function: F) -> F:
    """Add `--initial-peers`."""
    return click.option(
        "--initial-peers",
        multiple=True,
        envvar="PEER_INITIAL_PEERS",
        metavar="MADDR",
        callback=_checked,
        help="Address of a peer of the run, /ip4/…/tcp/…/p2p/…. Repeatable (PEER_INITIAL_PEERS: spaces between).",
    )(function)


def host_maddrs(function: F) -> F:
    """Add `--host-maddrs`."""
    return click.option(
        "--host-maddrs",
        multiple=True,
        envvar="PEER_HOST_MADDRS",
        metavar="MADDR",
        callback=_checked,
        help="Where to listen, e.g. /ip4/0.0.0.0/tcp/4810 or /ip6/::/tcp/4810 (default: any free port). Repeatable.",
    )(function)


def announce_maddrs(function: F) -> F:
    """Add `--announce-maddrs`."""
    return click.option(
        "--announce-maddrs",
        multiple=True,
        envvar="PEER_ANNOUNCE_MADDRS",
        metavar="MADDR",
        callback=_checked,
        help="The address that other peers can reach, where this machine cannot know it. Repeatable.",
    )(function)


def lan(function: F) -> F:
    """Add `--lan`."""
    return click.option(
        "--lan/--no-lan",
        default=True,
        envvar="PEER_LAN",
        show_default=True,
        help="Look for peers of the run in your own network by multicast, and let them see this one.",
    )(function)


def port_mapping(function: F) -> F:
    """Add `--port-mapping`."""
    return click.option(
        "--port-mapping/--no-port-mapping",
        default=True,
        envvar="PEER_PORT_MAPPING",
        show_default=True,
        help="Ask the router by UPnP to open a port where others cannot dial this machine. Never for a private run.",
    )(function)


class _RelayRate(ByteRate):
    """Bytes per second; `off` becomes 0."""

    name = "off|rate"
    example = "is no rate. Write bytes a second, as 500kB or 1.5MB, or off"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return 0 if str(value).strip().lower() == "off" else super().convert(value, param, ctx)


def relay(function: F) -> F:
    """Add `--relay`, in bytes per second."""
    return click.option(
        "--relay",
        type=_RelayRate(),
        envvar="PEER_RELAY",
        metavar="off|SIZE",
        help="Pass on so much a second for peers that nobody can dial, e.g. 500kB.  [default: a fifth of --max-upload]",
    )(function)


def max_upload(function: F) -> F:
    """Add `--max-upload`, in bytes per second."""
    return click.option(
        "--max-upload",
        type=ByteRate(),
        metavar="SIZE",
        help="Send no faster than this a second, e.g. 1MB.  [default: all]",
    )(function)


def max_download(function: F) -> F:
    """Add `--max-download`, in bytes per second."""
    return click.option(
        "--max-download", type=ByteRate(), metavar="SIZE", help="Receive no faster than this a second, e.g. 10MB."
    )(function)


def _invitation(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    """Parse an invitation, or read it from @FILE. Raises TicketError."""
    if value is None:
        return None
    from peer.run.admission.invitation import Invitation

    return Invitation.named(value)


def invitation(function: F) -> F:
    """Add `--invitation` to a command that takes part in a run."""
    return click.option(
        "--invitation",
        metavar="INVITATION|@FILE",
        callback=_invitation,
        help="The operator's invitation of your key, where a run asks for one. It is kept for later starts.",
    )(function)


def guest_invitation(function: F) -> F:
    """Add `--invitation` to a command that reads from a run without taking part."""
    return click.option(
        "--invitation",
        metavar="INVITATION|@FILE",
        callback=_invitation,
        help="With a ticket: the operator's invitation of your key, where a run asks for one.",
    )(function)


def step_seconds(function: F) -> F:
    """Add `--step-seconds`."""
    return click.option(
        "--step-seconds",
        type=click.FloatRange(0, 1e5),
        default=0.0,
        help="An inner step takes at least so long: several peers of one machine are then equally fast.",
    )(function)


def upload_budget(function: F) -> F:
    """Add `--daily-upload` and `--monthly-upload`, in bytes."""
    function = click.option(
        "--monthly-upload",
        type=Size(),
        envvar="PEER_MONTHLY_UPLOAD",
        metavar="SIZE",
        help="Send no more than this in a calendar month, as --daily-upload.",
    )(function)
    return click.option(
        "--daily-upload",
        type=Size(),
        envvar="PEER_DAILY_UPLOAD",
        metavar="SIZE",
        help="Send no more than this in a day, local time, e.g. 5GB. Then train alone until midnight.  [default: all]",
    )(function)


def cache_disk(function: F) -> F:
    """Add `--cache-disk`, in bytes."""
    return click.option(
        "--cache-disk",
        type=Size(),
        envvar="PEER_CACHE_DISK",
        default="4GB",
        show_default=True,
        metavar="SIZE",
        help="Keep at most so much of the runs' files (data, tokenizers, configurations) in the home.",
    )(function)


def metrics(function: F) -> F:
    """Add `--metrics-port` and `--metrics-host`."""
    function = click.option(
        "--metrics-host",
        default="127.0.0.1",
        envvar="PEER_METRICS_HOST",
        show_default=True,
        help="Address that answers requests for metrics. There is no password.",
    )(function)
    return click.option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        envvar="PEER_METRICS_PORT",
        help="Serve Prometheus metrics at this port, path /metrics. 0: any free one.  [default: none]",
    )(function)


def leave_on_eof(function: F) -> F:
    """Add `--leave-on-eof`, for programs that start a daemon: the daemon ends when the program does, in whatever
    way."""
    return click.option(
        "--leave-on-eof",
        is_flag=True,
        expose_value=False,
        callback=_with_input,
        help="Leave when standard input ends, with the program at its other end.",
    )(function)


def _with_input(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        from peer.node.process import leave_when_stdin_closes

        leave_when_stdin_closes()


def as_json(function: F) -> F:
    """Add `--json`, as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object.")(function)


def _presets(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the presets that begin with `incomplete`, for shell completion."""
    from peer.methods.registry import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


def preset(help_text: str) -> Callable[[F], F]:
    """Add `--preset` with shell completion."""
    return click.option("--preset", help=help_text, shell_complete=_presets)


def settings(function: F) -> F:
    """Add `--preset` and `--set`, the changes with which a manifest is derived. `--set` takes `key=value`."""
    function = preset(PRESET_HELP)(function)
    return click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a manifest value.")(
        function
    )


def refuse_unused(context: click.Context, names: Iterable[str], needed: str) -> None:
    """Raise UsageError for an option on the command line that has no effect without the option `needed`.

    `names`: parameter names, such as `step_seconds`. Values from the configuration file or the environment are ignored
    silently, because they were not meant for this one command."""
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE
        if parameter.name in set(names) and given:
            option = parameter.opts[0]
            raise UsageError(f"{option} has no effect without {needed}", f"Add {needed}, or leave {option} out.")


@contextlib.contextmanager
def writing(path: Path, option: str) -> Iterator[None]:
    """Context for writing a result file: converts OSError to OutputLost, which names the file and the option."""
    try:
        yield
    except OSError as error:
        advice = file_advice(error, path, f"choose another {option}")
        raise OutputLost(f"cannot write {path}: {error.strerror}", advice) from error


def refuse_unwritable(path: Path | None, option: str, endings: Sequence[str] = ()) -> None:
    """Raise UsageError for a file that cannot be written, before the work begins whose result it will hold. None: no
    file is requested.

    `endings`: accepted file endings, such as `.csv`. Empty: any name is accepted."""
    if path is None:
        return
    if endings and path.suffix.lower() not in endings:
        raise UsageError(f"{option} {path} names no format", f"End the name with {' or '.join(endings)}.")
    if path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise UsageError(f"{option} {path} cannot be written", "Name a file in a folder that exists and is yours.")
