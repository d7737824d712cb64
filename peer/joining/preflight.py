"""Checks the user's options and this machine before anything is opened or fetched. They run before torch is loaded,
which takes many seconds."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from peer import identity as identities
from peer.errors import DataError, HomeUnusable, ModelError, UsageError, for_shell
from peer.process_limits import check_open_files
from peer.run.description import NO_CODE, described_model
from peer.run.home import Home
from peer.run.manifest import Manifest
from peer.run.options import NodeOptions, PeerOptions
from peer.run.sections import CustomSection
from peer.user_folders import expand_user, user_name

DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Device files of the drivers of accelerators. Asking torch instead would load the driver into the daemon."""


def check_start(options: NodeOptions, run_id: bytes) -> None:
    """Check what a daemon opens first: the limit on open files, the locks of home and key, the key, and the run's
    files.

    The locks are released again. No key is made, and a home that did not exist is removed. Raises UsageError, HomeBusy,
    IdentityError and HomeUnusable, as the daemon itself would."""
    check_open_files()
    is_new = not os.path.lexists(Home(options.home, make=False).path)
    home = Home(options.home)
    if is_new:
        with contextlib.suppress(OSError):
            home.path.rmdir()  # a later failure of the start must leave nothing behind
    with contextlib.nullcontext() if is_new else home.lock(options.identity_path):
        key = expand_user(options.identity_path or home.identity)
        if os.path.lexists(key):
            identities.load(key)
        folder = Home(options.home, make=False).run(run_id).path
        for path in (home.artifacts, folder.parent, folder, *(folder.iterdir() if _is_listable(folder) else ())):
            _check_ours(path, home.path)


def _is_listable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)


def _check_ours(path: Path, home: Path) -> None:
    """Raise HomeUnusable for a file or folder that this user cannot read and write. The usual cause is an earlier start
    with sudo."""
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise HomeUnusable(f"cannot look at {path}: {error.strerror}") from error
    if path.is_symlink() or os.access(path, os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0)):
        return
    me = os.geteuid()
    raise HomeUnusable(
        f"{path} belongs to {user_name(facts.st_uid)} (mode {facts.st_mode & 0o7777:o}), and {user_name(me)} cannot "
        "read and write it",
        f"Run: chmod -R u+rwX {for_shell(home)}   or choose another --home."
        if facts.st_uid == me
        else f"Run: sudo chown -R {me} {for_shell(home)}   or choose another --home.",
    )


def check_training_loop(manifest: Manifest, *, attached: bool) -> None:
    """Raise ModelError for a model whose code the built-in training loop lacks. `attached`: the user's own program
    makes the steps."""
    if isinstance(manifest.model, CustomSection) and not attached:
        found = f"run {manifest.name!r} trains {described_model(manifest)}: its code is not here"
        fix = "Train it with your own loop: `with peer.join(TICKET, model, optimizer)`. See peer help own-model"
        raise ModelError(found, fix, NO_CODE)


def check_volunteer(options: PeerOptions) -> None:
    """Raise UsageError for a device that does not exist, DataError for a `--data` folder that cannot be read."""
    if options.device == "cuda":
        check_cuda()
    if options.data_dir is not None:
        check_data_folder(options.data_dir)


def check_cuda(drivers: tuple[str, ...] = DRIVERS) -> None:
    """Raise UsageError when torch cannot use a CUDA device."""
    fix = "Use --device cpu, or check the driver with nvidia-smi."
    if not any(Path(driver).exists() for driver in drivers):
        raise UsageError("torch sees no CUDA device: no driver of one is loaded here", fix)
    import torch  # takes seconds, so the driver is checked first

    if torch.version.cuda is None and torch.version.hip is None:
        raise UsageError("torch sees no CUDA device: this torch is built for the CPU alone", fix)


def check_data_folder(folder: Path) -> None:
    """Raise DataError unless this is a folder that can be listed and is not empty."""
    try:
        with os.scandir(expand_user(folder)) as found:
            empty = next(found, None) is None
    except OSError as error:
        raise DataError(
            f"the data folder {folder} cannot be read: {error.strerror}", "Give --data an existing folder."
        ) from error
    if empty:
        raise DataError(f"the data folder {folder} is empty", "Put text files into it, or name another with --data.")
