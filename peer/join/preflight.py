"""What a volunteer asked for and this machine lacks, refused before anything is opened or fetched."""

from __future__ import annotations

import os
from pathlib import Path

from peer.errors import DataError, UsageError
from peer.run.options import JoinOptions
from peer.user_folders import expand_user

DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Files that the drivers of accelerators leave in /dev. Asking torch would load the driver into the daemon."""


def check_volunteer(options: JoinOptions) -> None:
    """Raise UsageError for a device that is not there, DataError for a `--data` folder that cannot be read."""
    if options.device == "cuda":
        check_cuda()
    if options.data_dir is not None:
        check_data_folder(options.data_dir)


def check_cuda(drivers: tuple[str, ...] = DRIVERS) -> None:
    """Raise UsageError where torch cannot use a CUDA device."""
    fix = "Use --device cpu, or check the driver with nvidia-smi."
    if not any(Path(driver).exists() for driver in drivers):
        raise UsageError("torch sees no CUDA device: no driver of one is loaded here", fix)
    import torch  # it takes seconds, and whoever has no driver need not wait for it

    if torch.version.cuda is None and torch.version.hip is None:
        raise UsageError("torch sees no CUDA device: this torch is built for the CPU alone", fix)


def check_data_folder(folder: Path) -> None:
    """Raise DataError unless this is a folder with something in it that can be listed."""
    try:
        with os.scandir(expand_user(folder)) as found:
            empty = next(found, None) is None
    except OSError as error:
        raise DataError(
            f"the data folder {folder} cannot be read: {error.strerror}", "Give --data an existing folder."
        ) from error
    if empty:
        raise DataError(f"the data folder {folder} is empty", "Put text files into it, or name another with --data.")
