"""`peer --install-completion`: shell completion of commands, options and values."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import get_completion_class

from peer.cli.printing import echo
from peer.errors import UsageError, file_advice

F = TypeVar("F", bound=Callable[..., Any])
SHELLS = ("bash", "zsh", "fish")
PROGRAMS = ("peer", "peer-swarm")
VARIABLE = "_PEER_COMPLETE"
"""Environment variable with which the shell requests completions. Both names of the program use it."""


def install_completion(function: F) -> F:
    """Add the option `--install-completion`."""
    return click.option(
        "--install-completion",
        metavar="[bash|zsh|fish]",
        is_flag=False,
        flag_value="",
        expose_value=False,
        is_eager=True,
        callback=_install,
        help="Complete commands and options in your shell: write its file into your own folder of completions.",
    )(function)


def _install(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is None or context.resilient_parsing:
        return
    shell = value or Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        found = f"completion is made for {', '.join(SHELLS)}, and this shell is {shell or 'not known'}"
        raise UsageError(found, "Name one, e.g.: peer --install-completion bash")
    for program in PROGRAMS:
        echo(f"wrote {write_script(context.command, shell, program)}")
    echo(_next_step(shell))
    context.exit()


def write_script(command: click.Command, shell: str, program: str) -> Path:
    """Write the completion script for `program` and return its path. Raises UsageError when it cannot be written."""
    from peer.user_folders import make_private
    from peer.whole_files import replace_file

    kind = get_completion_class(shell)
    assert kind is not None, shell
    file = _file(shell, program)
    try:
        make_private(file.parent)
        replace_file(file, kind(command, {}, program, VARIABLE).source().encode(), mode=0o666)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}", file_advice(error, file)) from error
    return file


def written_scripts() -> list[Path]:
    """Return the paths of the scripts that `write_script` has written for this user."""
    files = [_file(shell, program) for shell in SHELLS for program in PROGRAMS]
    return [file for file in files if file.is_file() and VARIABLE in file.read_text(errors="replace")]


def _file(shell: str, program: str) -> Path:
    """Return the file from which the shell loads completions by itself. For zsh the user has to add its folder to
    `fpath`."""
    from peer.user_folders import config_folder, data_folder

    if shell == "bash":
        own = os.environ.get("BASH_COMPLETION_USER_DIR")
        return (Path(own) if own else data_folder() / "bash-completion") / "completions" / program
    if shell == "fish":
        return config_folder() / "fish" / "completions" / f"{program}.fish"
    return data_folder() / "zsh" / "site-functions" / f"_{program}"


def _next_step(shell: str) -> str:
    if shell == "bash":
        return "It works in new shells, with the package bash-completion (version 2 or later) installed."
    if shell == "fish":
        return "It works in new shells."
    folder = _file(shell, PROGRAMS[0]).parent
    return f"Add to ~/.zshrc, unless it is there: fpath+=({folder}); autoload -Uz compinit; compinit"
