"""Draw docs/images/swarm.svg and status.svg: a peer in a real swarm on this machine, as its terminal shows it.

`python docs/make_picture.py` runs `peer swarm` for two minutes and asks its first peer for its status, as
`peer status --json` does. It exports the last frame of the product's own view (`peer.observe.terminal_frame`), and the
text that `peer status` prints of the same report (`peer.observe.status`)."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console, RenderableType
from rich.terminal_theme import MONOKAI
from rich.text import Text

from peer.observe.status.notices import read_status
from peer.observe.status.text import status_text
from peer.observe.status.value import DaemonStatus
from peer.observe.terminal_frame import History, render_frame
from peer.python_child import popen_python, run_python

IMAGES = Path(__file__).parent / "images"
WIDTH_COLUMNS = 84
ROUND_S = 5
LAST_ROUND = 24
"""The frame that is kept is the first one of this round or a later one."""
SECONDS_BETWEEN_FRAMES = 0.5
FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Rich's template fetches fonts from another host; a reader's own monospace font does as well."""


def status(home: Path) -> DaemonStatus | None:
    """The status of the daemon under `home`; None while it does not answer."""
    done = run_python("peer", "status", "--json", "--home", str(home), capture_output=True, text=True, check=False)
    return read_status(json.loads(done.stdout)) if done.returncode == 0 else None


def record(home: Path) -> tuple[DaemonStatus, History]:
    """Follow one peer until its last round; its final status and the history that the view needs."""
    history, report = History(), None
    while report is None or report.progress is None or report.progress.round < LAST_ROUND:
        time.sleep(SECONDS_BETWEEN_FRAMES)
        if (fresh := status(home)) is not None:
            report = fresh
            history.add(report, time.monotonic())
    return report, history


def export(shown: RenderableType, title: str) -> str:
    """What a terminal shows, as SVG."""
    console = Console(
        record=True, width=WIDTH_COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(shown)
    return FONT_FACE.sub("", console.export_svg(title=title, theme=MONOKAI))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="peer-picture-") as folder:
        homes = Path(folder) / "swarm"
        command = ["peer", "swarm", "--peers", "4", "--minutes", "4", "--home", str(homes)]
        settings = ["--set", "sync.clock=seconds", "--set", f"sync.sync_every={ROUND_S}"]
        with popen_python(*command, *settings, stdin=subprocess.PIPE) as swarm:
            try:
                report, history = record(homes / "peer-1")
            finally:
                swarm.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    swarm.wait(timeout=60)
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / "swarm.svg").write_text(export(render_frame(report, history), "peer join"))
    report = replace(report, log=report.log.replace(folder, "/home/ada"))
    (IMAGES / "status.svg").write_text(export(Text(status_text(report, time.time())), "peer status"))


if __name__ == "__main__":
    main()
