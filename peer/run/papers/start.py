"""When round 0 of a run began, from what is signed: the manifest, or a paper."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from peer.protocol.messages import RunId
from peer.protocol.swarm.claimed_round import furthest_round
from peer.run.manifest import Manifest
from peer.run.papers.shelf import PaperShelf
from peer.run.presets import resolve

FORMER = "run_start"
"""File of a run's folder in which earlier versions kept the start. It counts until a paper says otherwise."""


def wants_paper(manifest: Manifest) -> bool:
    """Return whether the run begins when a paper says so."""
    return manifest.sync.clock == "seconds" and not manifest.start


def shelf_of(run_id: RunId, manifest: Manifest, now: Callable[[], float]) -> PaperShelf:
    """Make the shelf of a run, which takes no digest of a round that cannot have been reached. `now`: run time.

    No round is past the manifest's last one. With a clock in seconds none is past the next one, and none past round 0
    while nothing that is signed says when the run began."""

    method = resolve(manifest.sync)

    def furthest() -> int:
        most = furthest_round(method.round_clock(manifest.start or shelf.start_time), now())
        if most is None:
            most = 0 if wants_paper(manifest) else manifest.rounds
        return min(most, manifest.rounds)

    shelf = PaperShelf(run_id, manifest.operator, furthest)
    return shelf


def known_start(manifest: Manifest, shelf: PaperShelf, folder: Path | None) -> float:
    """Return when round 0 began, seconds since the epoch; 0: nothing that is signed says. `folder`: the run's, in the
    home."""
    return manifest.start or shelf.start_time or former_start(folder)


def former_start(folder: Path | None) -> float:
    """Return the start that an earlier version kept in a run's folder; 0: it kept none."""
    if folder is None:
        return 0.0
    try:
        return float((folder / FORMER).read_text())
    except (OSError, ValueError):
        return 0.0


def discard_former(folder: Path) -> None:
    """Remove what an earlier version kept, now that a paper says when the run began."""
    with contextlib.suppress(OSError):  # a paper outranks it anyway
        (folder / FORMER).unlink(missing_ok=True)
