"""`peer config`: show and change default values of options."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from peer.cli.options import as_json
from peer.cli.printing import echo

if TYPE_CHECKING:
    from peer.config.report import ConfigSetting


@click.group("config")
def command() -> None:
    """Show and change the configuration file.

    Keys are options without their dashes. Keys above the first section apply to every command, and keys in a section
    such as [join] to that command. An option on the command line takes precedence over the environment (PEER_MAX_UPLOAD
    for --max-upload), and the environment over the file."""


@command.command("show", epilog="Example: peer config show join")
@click.argument("names", nargs=-1, metavar="[COMMAND]...")
@as_json
@click.pass_context
def show(context: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Print every option of a COMMAND (default: join), its value without options on the command line, and where the
    value comes from."""
    from peer.config.loading import config_of
    from peer.config.options import check_names, commands_of
    from peer.config.report import settings_of

    root, path, file = context.find_root(), names or ("join",), config_of(context)
    assert isinstance(root.command, click.Group)
    check_names(file, commands_of(root.command, root))
    own = _context_of(root, path)
    settings = settings_of(own.command, path, own.parent or root, file)
    if as_json:
        values = {one.key: {"value": one.value, "source": one.source, "where": one.where} for one in settings}
        echo(json.dumps({"command": list(path), "file": str(file.path), "values": values}, indent=2))
        return
    echo(f"peer {' '.join(path)}   file: {file.path}{'' if file.path.exists() else ' (there is none)'}")
    for one in settings:
        echo(f"  {one.key:<20} {_text(one):<28} {one.origin_text()}")


@command.command("path", epilog="Example: peer config path")
@click.pass_context
def path(context: click.Context) -> None:
    """Print the path of the configuration file. The file need not exist."""
    from peer.config.loading import path_of

    echo(str(path_of(context)))


@command.command("set", epilog="Example: peer config set join.max-upload 1MB")
@click.argument("key", metavar="[COMMAND.]OPTION")
@click.argument("values", nargs=-1, required=True, metavar="VALUE...")
@click.pass_context
def set_(context: click.Context, key: str, values: tuple[str, ...]) -> None:
    """Write a value into the configuration file. Comments in the file are kept.

    A repeatable option takes several values."""
    from peer.config.edit import set_value, toml_value
    from peer.config.file import ConfigEntry, ConfigFile
    from peer.config.loading import path_of
    from peer.config.options import parameter_key, value_for

    file = path_of(context)
    place, flag, option, owner = _option(context, key)
    given = [toml_value(value) for value in values] if option.multiple or len(values) > 1 else toml_value(values[0])
    checked = value_for(option, ConfigEntry(given, 0), ConfigFile(file))
    option.type_cast_value(owner, checked)
    set_value(file, place, parameter_key(flag)[1], given)
    echo(f"{key} is set in {file}")


@command.command("unset", epilog="Example: peer config unset join.max-upload")
@click.argument("key", metavar="[COMMAND.]OPTION")
@click.pass_context
def unset(context: click.Context, key: str) -> None:
    """Remove a value from the configuration file."""
    from peer.config.edit import remove_value
    from peer.config.loading import path_of
    from peer.config.options import parameter_key

    file = path_of(context)
    place, flag = parameter_key(key)
    found = remove_value(file, place, flag)
    echo(f"{key} is taken out of {file}" if found else f"{file} has no {key}")


def _context_of(root: click.Context, path: tuple[str, ...]) -> click.Context:
    """Return the click context of a command called without arguments. Raises UsageError for an unknown command."""
    from peer.config.options import no_such_command

    context = root
    for name in path:
        group = context.command
        command = group.get_command(context, name) if isinstance(group, click.Group) else None
        if command is None:
            raise no_such_command(path, root)
        context = click.Context(command, info_name=name, parent=context)
    return context


def _option(context: click.Context, key: str) -> tuple[tuple[str, ...], str, click.Option, click.Context]:
    """Return the section, flag, option and command context that a key names. Raises UsageError."""
    from peer.config.options import commands_of, find_option, parameter_key

    root = context.find_root()
    assert isinstance(root.command, click.Group)
    place, flag = parameter_key(key)
    path, option = find_option(place, flag, commands_of(root.command, root))
    return place, flag, option, _context_of(root, path)


def _text(setting: ConfigSetting) -> str:
    match setting.value:
        case None:
            return "-"
        case bool() as value:
            return "true" if value else "false"
        case list() as values:
            return " ".join(values) or "-"
    return str(setting.value)
