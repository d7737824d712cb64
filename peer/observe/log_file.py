"""The log file of a daemon: its printed lines, status lines, warnings of libraries, and the error that ended it.

At most `KEPT_FILES` files of `MOST_BYTES` bytes each are kept; the oldest is deleted. When a write fails, for example
on a full disk, the daemon reports it once on stderr and continues without the lost lines."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Iterator
from logging.handlers import RotatingFileHandler
from pathlib import Path

from peer.errors import PeerError
from peer.observe.formatting import harmless
from peer.observe.output import optional_output

MOST_BYTES = 5_000_000
KEPT_FILES = 3
FORMAT = "%(asctime)s %(levelname)-7s %(message)s"

_SECRET = re.compile(r"#token=\S+")
"""The end of a page address that contains its access token."""
_log = logging.getLogger("peer.said")
_log.setLevel(logging.INFO)


def log_line(line: str) -> None:
    """Write a line to the log, if one is open. A page's access token is removed, because logs are kept and passed on to
    others."""
    _log.info("%s", harmless(_SECRET.sub("#token=…", line)))


@contextlib.contextmanager
def log_file(path: Path) -> Iterator[None]:
    """Keep a log at `path` open within the context. An error that ends the context is logged and raised again.

    The error is logged to the file alone: the caller that catches it prints it to the terminal with its reason and
    fix."""
    file = _RotatingFile(path)
    console = logging.StreamHandler()  # logging's last-resort handler is off once another handler exists
    console.setLevel(logging.WARNING)
    root = logging.getLogger()
    root.addHandler(file)
    root.addHandler(console)
    try:
        yield
    except PeerError as error:
        told = harmless(f"{type(error).__name__} (exit code {error.exit_code}): {error.found}. {error.fix}")
        file.handle(logging.LogRecord("peer", logging.ERROR, "", 0, "%s", (told,), None))
        raise
    except Exception:  # an unexpected exception: log its traceback
        file.handle(logging.LogRecord("peer", logging.CRITICAL, "", 0, "a defect", None, sys.exc_info()))
        raise
    finally:
        root.removeHandler(console)
        root.removeHandler(file)
        file.close()


class _RotatingFile(RotatingFileHandler):
    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=MOST_BYTES, backupCount=KEPT_FILES - 1, encoding="utf-8", delay=True)
        self.setFormatter(logging.Formatter(FORMAT))
        self._failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        error = sys.exc_info()[1]
        if not self._failed:
            with optional_output():
                print(f"the log {self.baseFilename} cannot be written: {error}", file=sys.stderr, flush=True)
        self._failed = True
