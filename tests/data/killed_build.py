"""A build in a process that kills itself at a given moment: `killed_build TEXTS TOKENIZER OUT SHARE MOMENT`.

Moments: `document:N` is after the N-th document was read; `before:N` and `after:N` are before and after the N-th file
is renamed to its final name; `never`: the build completes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from peer.data import pipeline, shard_writer
from peer.data.build import build
from peer.data.encoding import open_tokenizer
from peer.data.sources import find
from tests.data.conftest import SHARD_TOKENS


class Killer:
    """Counts events, and kills the process at the given one."""

    def __init__(self, moment: str) -> None:
        self._kind, _, number = moment.partition(":")
        self._left = int(number or 0)

    def at(self, kind: str) -> None:
        if kind == self._kind:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    sources, tokenizer, out, share, moment = sys.argv[1:]
    killer, replace = Killer(moment), Path.replace

    def named(path: Path, target: Path) -> Path:
        killer.at("before")
        result = replace(path, target)
        killer.at("after")
        return result

    Path.replace = named  # type: ignore[method-assign,assignment]
    shard_writer.SHARD_TOKENS = SHARD_TOKENS
    pipeline.BATCH_PIECES = 3
    encoder = open_tokenizer(Path(tokenizer))
    build(find([Path(sources)]), encoder, Path(out), int(share) or None, lambda read, total: killer.at("document"))


if __name__ == "__main__":
    main()
