"""A build in a process of its own, which kills itself at a moment: `killed_build TEXTS TOKENIZER OUT SHARE MOMENT`.

Moments: `document:N` is behind the N-th document that it takes, `before:N` and `after:N` are at the N-th file that gets
its final name. `never` lets it end."""

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
    """A count that ends the process at its moment."""

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
