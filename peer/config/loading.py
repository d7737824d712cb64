"""Applies the configuration file and the environment before a command's own options are parsed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from peer.config.file import EVERYWHERE, ConfigFile, default_path, read_config
from peer.config.options import (
    check_names,
    commands_of,
    defaults_for,
    name_variables,
    options_of,
    strange_variables,
    variables_of,
    warning_of,
)
from peer.errors import HomeUnusable
from peer.user_folders import expand_user

READ = "peer.config"
"""Key in click's `Context.meta` under which the parsed file is stored."""


def path_of(context: click.Context) -> Path:
    """Return the path from --config or PEER_CONFIG, otherwise that of the user's own file.

    Raises HomeUnusable if the user has no home directory."""
    root = context.find_root()
    if READ in root.meta:
        return config_of(context).path
    named: Path | None = root.params.get("config")
    return expand_user(named) if named else default_path()


def config_of(context: click.Context) -> ConfigFile:
    """Return the parsed file at `path_of`. The user's own file need not exist, and a user without a home directory has
    none. Raises UsageError."""
    root = context.find_root()
    if READ not in root.meta:
        named = root.params.get("config") is not None
        try:
            path = path_of(context)
        except HomeUnusable:
            if named:
                raise
            path = Path(os.devnull)
        root.meta[READ] = read_config(path, required=named)
    file: ConfigFile = root.meta[READ]
    return file


def prepare(command: click.Command) -> click.Command:
    """Let a newly loaded command take its options from the environment too, and accept `--config` after its name."""
    name_variables(command)
    _add_config_option(command)
    return command


def _add_config_option(command: click.Command) -> None:
    if isinstance(command, click.Group):
        for below in command.commands.values():
            _add_config_option(below)
    elif not any(one.name == "config" for one in command.params):
        command.params.append(
            click.Option(
                ["--config"],
                type=click.Path(path_type=Path),
                expose_value=False,
                is_eager=True,
                hidden=True,
                callback=_read_other_file,
            )
        )


def _read_other_file(context: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    """Read the file named by a `--config` after the command, instead of the one that `give_defaults` read."""
    if value is None or context.resilient_parsing:
        return
    path = context.command_path.split()[1:]
    file = context.find_root().meta[READ] = read_config(expand_user(value), required=path[0] != "config")
    context.default_map = defaults_for(file, path, context.command)


def give_defaults(group: click.Group, context: click.Context, name: str, command: click.Command) -> dict[str, Any]:
    """Return click's `default_map` for the called command of the group. Raises UsageError.

    Other commands are imported only if the file has a section or key that this command does not have, to check whether
    the name exists."""
    file = config_of(context)
    shared = file.sections.get(EVERYWHERE, {})
    sections = {place[0] for place in file.sections if place}
    if not shared.keys() <= options_of(command).keys() or not sections <= set(group.list_commands(context)):
        check_names(file, commands_of(group, context))
    return {name: defaults_for(file, (name,), command)}


def warnings_for(
    group: click.Group, context: click.Context, command: click.Command, environment: Mapping[str, str] = os.environ
) -> list[str]:
    """Return a warning for every environment variable with our prefix that no command reads."""
    own = variables_of(command)
    strange = [name for name in strange_variables(environment) if name not in own]
    if not strange:
        return []
    known = set().union(*(variables_of(one) for _, one in commands_of(group, context)))
    return [warning_of(name, known) for name in strange if name not in known]
