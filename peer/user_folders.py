"""Folders of the user who runs this process: the home directory, and those of the XDG Base Directory Specification.

A user may have none: a service or container can run under a user id that is not in the user database, with HOME unset.
Then only the functions that need such a folder fail."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from peer.errors import HomeUnusable, UsageError

T = TypeVar("T")


def user_home() -> Path:
    """Return HOME, otherwise the home directory in the user database. An empty or relative HOME counts as unset.

    Raises HomeUnusable if there is neither."""
    import pwd  # missing on Windows, where the command line refuses to start

    try:
        home = Path(os.environ.get("HOME", ""))
        return home if home.is_absolute() else Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise HomeUnusable(
            f"user {os.getuid()} has no home directory: HOME is not an absolute path, and the user database has no "
            "entry for this user",
            "Set HOME to an absolute path, or give --home DIR.",
        ) from None


def data_folder() -> Path:
    """Return XDG_DATA_HOME, otherwise ~/.local/share. Raises HomeUnusable."""
    return _xdg("XDG_DATA_HOME", ".local/share")


def config_folder() -> Path:
    """Return XDG_CONFIG_HOME, otherwise ~/.config. Raises HomeUnusable."""
    return _xdg("XDG_CONFIG_HOME", ".config")


def expand_user(path: Path) -> Path:
    """Replace a leading `~` or `~name` by that user's home directory.

    Raises HomeUnusable for a user without one, and UsageError for an unknown user. Also raises UsageError for a path
    with remains of shell syntax (quotation marks, an unexpanded variable), because otherwise a new home with a new key
    would silently be created there."""
    if (left := _left_in(str(path))) and not os.path.lexists(path):
        raise UsageError(f"the path {path} {left}", "Write the path itself, as in PEER_HOME=/srv/peer.")
    if not path.parts or not path.parts[0].startswith("~"):
        return path
    import pwd

    user, *below = path.parts
    if user == "~":
        return user_home().joinpath(*below)
    try:
        return Path(pwd.getpwnam(user[1:]).pw_dir).joinpath(*below)
    except KeyError:
        raise UsageError(f"{path}: there is no user {user[1:]}", f"Write ./{path} for a folder of that name.") from None


def _left_in(path: str) -> str:
    """Return what a shell would have removed or replaced in this path. Empty: nothing."""
    if any(one < " " or one == "\x7f" for one in path):
        return "has a control character in it, such as the carriage return that ends a line of a file from Windows"
    if len(path) > 1 and path[0] == path[-1] and path[0] in "\"'":
        return "is in quotation marks, as docker --env-file keeps them"
    return "begins with a variable that nothing has replaced" if re.match(r"\$[{A-Za-z_]", path) else ""


def temporary_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Make a private folder in the system's temporary folder. It is removed when its context ends.

    Raises HomeUnusable if no temporary folder is writable."""
    return _made(lambda: tempfile.TemporaryDirectory(prefix=prefix))


def kept_temporary_folder(prefix: str) -> Path:
    """Make a private folder in the system's temporary folder, to be removed by the caller. Raises HomeUnusable."""
    return Path(_made(lambda: tempfile.mkdtemp(prefix=prefix)))


def system_temporary_folder() -> Path:
    """Return TMPDIR, or the first of the system's usual temporary folders that is writable. Raises HomeUnusable."""
    return Path(_made(tempfile.gettempdir)).absolute()


def _made(make: Callable[[], T]) -> T:
    try:
        return make()
    except OSError as error:
        raise HomeUnusable(
            f"no temporary folder can be made: {error.strerror or error}",
            "Set TMPDIR to a folder that your user can write to, on a disk with free space.",
            "What is needed for this command alone lies in a temporary folder.",
        ) from error


def user_name(number: int) -> str:
    """Return a user's name, or e.g. `user 1000` if the user database does not have it."""
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, accessible to their owner only, whatever the umask.

    Existing folders stay as they are. Raises OSError."""
    for missing in reversed([one for one in folder.parents if not one.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def keeps_modes(folder: Path) -> bool:
    """Return whether files in this folder can be private to their owner.

    On FAT, exFAT and many network shares every file has the permissions of the mount, and chmod fails or has no effect.
    True if no file can be created to try it."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return not os.fstat(file.fileno()).st_mode & 0o077
    except OSError:
        return True


def _xdg(variable: str, below_home: str) -> Path:
    """Return the folder that `variable` names, otherwise `below_home` in the home. Relative values are ignored, as the
    specification requires."""
    given = Path(os.environ.get(variable, ""))
    return given if given.is_absolute() else user_home() / below_home
