"""Lists every option of a command with its value and where the value comes from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from peer.config.file import ConfigFile
from peer.config.options import defaults_for, entries_for, options_of, variable_of

DEFAULT, ENVIRONMENT, FILE = "default", "environment", "config file"
SECRET_WORDS = ("token", "secret", "password", "invitation")
"""Words in the name of an option that may hold a secret, unless its value is a path or names a file by @FILE."""
HIDDEN = "(not shown)"


@dataclass(frozen=True, slots=True)
class ConfigSetting:
    """An option's value when the command line does not set it, and the source of the value."""

    key: str
    value: Any
    """The value as written. None: there is none."""
    source: str
    where: str
    """The variable, or the file and line. Empty: the default."""

    def origin_text(self) -> str:
        """Return where the value comes from, as text."""
        return f"{self.source} {self.where}".strip()


def settings_of(
    command: click.Command, path: tuple[str, ...], parent: click.Context, file: ConfigFile
) -> list[ConfigSetting]:
    """Return the settings of the command at `path`, in the order of its help.

    Raises UsageError or click.BadParameter for an invalid value."""
    entries, defaults = entries_for(file, path, command), defaults_for(file, path, command)
    context = click.Context(command, info_name=path[-1], parent=parent, default_map=defaults)
    found = []
    for flag, option in options_of(command).items():
        value, source = option.consume_value(context, {})
        assert option.name is not None
        context.set_parameter_source(option.name, source)
        if source is not ParameterSource.DEFAULT:
            option.type_cast_value(context, value)
        value = option.get_default(context) if source is ParameterSource.DEFAULT else value
        match source:
            case ParameterSource.ENVIRONMENT:
                setting = ConfigSetting(flag, _shown(option, value), ENVIRONMENT, variable_of(flag))
            case ParameterSource.DEFAULT_MAP:
                setting = ConfigSetting(flag, _shown(option, value), FILE, file.where(entries[flag]))
            case _:
                setting = ConfigSetting(flag, _shown(option, value), DEFAULT, "")
        found.append(setting)
    return found


def origin_of(error: click.BadParameter, file: ConfigFile | None) -> str:
    """Return the source of the invalid value that an error is about, for people. Empty: the command line."""
    option, context = error.param, error.ctx
    if not isinstance(option, click.Option) or context is None or option.name is None:
        return ""
    flags = {one.name: flag for flag, one in options_of(context.command).items()}
    flag = flags.get(option.name, "")
    match context.get_parameter_source(option.name):
        case ParameterSource.ENVIRONMENT:
            return f"{ENVIRONMENT} {variable_of(flag)}"
        case ParameterSource.DEFAULT_MAP if file is not None:
            path = tuple(context.command_path.split()[1:])
            return f"{FILE} {file.where(entries_for(file, path, context.command)[flag])}"
    return ""


def _shown(option: click.Option, value: Any) -> Any:
    """Return a value in a form fit for JSON, or `HIDDEN` if it may be a secret."""
    name = option.name or ""
    # click uses a sentinel object for a missing default
    if not isinstance(value, str | int | float | Path | list | tuple):
        return None
    if any(word in name for word in SECRET_WORDS) and not isinstance(option.type, click.Path):
        return value if str(value).startswith("@") else HIDDEN
    if isinstance(value, list | tuple):
        return [str(one) for one in value]
    return value if isinstance(value, int | float) else str(value)
