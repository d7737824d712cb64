"""Matches a command's options with environment variables and with keys of the configuration file.

Everything is derived from the options that click knows, so that a new option needs no change here."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from peer.config.file import EVERYWHERE, ConfigEntry, ConfigFile, key_of
from peer.errors import UsageError
from peer.user_folders import expand_user

PREFIX = "PEER_"
CONFIG = "PEER_CONFIG"
NO_OPTIONS = frozenset({"config", "help", "version", "install-completion", "show-completion"})
"""Options that neither the file nor the environment can set."""
OTHER_VARIABLES = frozenset(
    f"PEER_{name}"
    for name in [
        "CONFIG",
        "KERNELS",
        "BOOTSTRAP_ADDRESS",
        "CPUS",
        "CRASHING",
        "CRASH_S",
        "GPU_CPUS",
        "GPU_IMAGE",
        "GPU_MEMORY",
        "HOMES",
        "IMAGE",
        "MEMORY",
        "REPLICAS",
        "RUN_DIR",
        "RUN_SETTINGS",
    ]
)
"""Variables of this project that are not options: of the codecs and of the containers."""


def flag_of(option: click.Option) -> str:
    """Return the option's long name without its dashes, such as `max-upload`."""
    names = [name for name in option.opts if name.startswith("--")] or option.opts
    return max(names, key=len).lstrip("-")


def variable_of(flag: str) -> str:
    """Return the name of the environment variable that sets an option."""
    return PREFIX + flag.upper().replace("-", "_")


def options_of(command: click.Command) -> dict[str, click.Option]:
    """Return flag -> option of a command, without those that only the command line can set."""
    options = {flag_of(one): one for one in command.params if isinstance(one, click.Option)}
    return {flag: option for flag, option in options.items() if flag not in NO_OPTIONS}


def name_variables(command: click.Command) -> None:
    """Let environment variables set every option of a command and of its subcommands."""
    for one in options_of(command).values():
        one.envvar = one.envvar or variable_of(flag_of(one))
    if isinstance(command, click.Group):
        for below in command.commands.values():
            name_variables(below)


def commands_of(group: click.Group, context: click.Context) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield all commands of a group, recursively, with their paths such as `("manifest", "new")`. Imports them."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        yield (name,), command
        if isinstance(command, click.Group):
            for path, below in commands_of(command, context):
                yield (name, *path), below


# -- the file ----------------------------------------------------------------------------------------------------------


def entries_for(file: ConfigFile, path: Sequence[str], command: click.Command) -> dict[str, ConfigEntry]:
    """Return the entries of the file for a command, by flag. Raises UsageError for a key that the command does not
    have."""
    known, place = options_of(command), tuple(path)
    own = file.sections.get(place, {})
    for key, entry in own.items():
        if key not in known:
            raise _unknown_key(file, entry, key, known, f"peer {' '.join(place)}")
    shared = {key: entry for key, entry in file.sections.get(EVERYWHERE, {}).items() if _is_shared(key, known)}
    return {**shared, **own}


def _is_shared(key: str, known: Mapping[str, click.Option]) -> bool:
    """Return whether a shared key may set this option. An option that names its own environment variable is excluded,
    because it has a different meaning in this command."""
    return key in known and known[key].envvar in (None, variable_of(key))


def defaults_for(file: ConfigFile, path: Sequence[str], command: click.Command) -> dict[str, Any]:
    """Return the file's values as click's `default_map` for a command and its subcommands. Raises UsageError."""
    options = options_of(command)
    values: dict[str, Any] = {}
    for flag, entry in entries_for(file, path, command).items():
        name = options[flag].name
        assert name is not None
        values[name] = value_for(options[flag], entry, file)
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            values[name] = defaults_for(file, (*path, name), below)
    return values


def check_names(file: ConfigFile, commands: Iterable[tuple[tuple[str, ...], click.Command]]) -> None:
    """Raise UsageError for a section that is no command, and for a shared key that is no command's option."""
    paths, flags = set[tuple[str, ...]](), set[str]()
    for path, command in commands:
        paths.add(path)
        flags |= options_of(command).keys()
    for place, entries in file.sections.items():
        if place != EVERYWHERE and place not in paths:
            first = next(iter(entries.values()))
            near = _nearest(".".join(place), [".".join(path) for path in paths])
            advice = f"Did you mean [{near}]?" if near else "Sections are named as commands are, such as [join]."
            raise UsageError(f"{file.where(first)}: there is no command for the section [{'.'.join(place)}]", advice)
    for key, entry in file.sections.get(EVERYWHERE, {}).items():
        if key not in flags:
            raise _unknown_key(file, entry, key, flags, "any command")


def find_option(
    place: tuple[str, ...], flag: str, commands: Iterable[tuple[tuple[str, ...], click.Command]]
) -> tuple[tuple[str, ...], click.Option]:
    """Return the option for a key in a section, and the path of a command that has it. Raises UsageError."""
    flags = set[str]()
    for path, command in commands:
        known = options_of(command)
        if path == place or place == EVERYWHERE:
            if flag in known:
                return path, known[flag]
            flags |= known.keys()
    if not flags:
        raise UsageError(f"there is no command {' '.join(place)}", "Write COMMAND.OPTION, such as join.max-upload.")
    near = _nearest(flag, flags)
    raise UsageError(f"{flag} is no option", f"Did you mean {near}?" if near else "See the command's --help.")


def no_such_command(path: tuple[str, ...], root: click.Context) -> UsageError:
    """Return the error for the path of a command that does not exist."""
    assert isinstance(root.command, click.Group)
    near = _nearest(path[0], root.command.list_commands(root))
    return UsageError(f"there is no command {' '.join(path)}", f"Did you mean {near}?" if near else "See peer --help.")


def value_for(option: click.Option, entry: ConfigEntry, file: ConfigFile) -> Any:
    """Return a value of the file in the form that click expects. Raises UsageError for a value of a wrong type.

    A path is relative to the file's folder, and `~` is the user's home."""
    value, flag = entry.value, flag_of(option)
    if option.is_flag != isinstance(value, bool) or isinstance(value, dict):
        kind = "true or false" if option.is_flag else "a number, a text or a list of texts"
        raise UsageError(
            f"{file.where(entry)}: {flag} = {json.dumps(value, default=str)} is not {kind}", "Correct the line."
        )
    if option.is_flag:
        return value
    if option.multiple:
        given = value if isinstance(value, list) else [value]
        return tuple(_text(option, one, file.path) for one in given)
    if isinstance(value, list):
        raise UsageError(f"{file.where(entry)}: {flag} takes one value, not a list", "Correct the line.")
    return _text(option, value, file.path)


def _text(option: click.Option, value: object, file: Path) -> str:
    if isinstance(option.type, click.Path):
        return str(file.absolute().parent / expand_user(Path(str(value))))
    return str(value)


def _unknown_key(file: ConfigFile, entry: ConfigEntry, key: str, known: Iterable[str], whose: str) -> UsageError:
    near = _nearest(key.removeprefix("no-"), known)
    advice = f"Did you mean {near}?" if near else "Keys are flags without their dashes. `peer config show` lists them."
    if near and key == f"no-{near}":
        advice = f"Write {near} = false."
    return UsageError(f"{file.where(entry)}: {key} is no option of {whose}", advice)


def _nearest(name: str, known: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(name, list(known), 1)), "")


# -- the environment ---------------------------------------------------------------------------------------------------


def strange_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the variables with our prefix that are not known as non-options. They must be options, or are misspelt."""
    return [name for name in environment if name.startswith(PREFIX) and name not in OTHER_VARIABLES]


def variables_of(command: click.Command) -> set[str]:
    """Return the names of the variables that a command and its subcommands read."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return {variable_of(flag) for flag in options_of(command)}.union(*(variables_of(one) for one in below))


def warning_of(variable: str, known: Iterable[str]) -> str:
    """Return the warning about a variable that nothing reads, with a similar name if there is one."""
    near = _nearest(variable, known)
    return f"warning: nothing reads {variable}" + (f"; did you mean {near}?" if near else "")


def parameter_key(name: str) -> tuple[tuple[str, ...], str]:
    """Split a key such as `join.max-upload` or `max-upload` into section path and flag."""
    *place, key = name.split(".")
    return tuple(place), key_of(key)
