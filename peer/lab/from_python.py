"""The laboratory for a notebook or a script: `peer.simulate`, `peer.swarm` and `peer.compare`.

Each runs the command of its name as a child process, whose options are its keyword arguments, and returns a report. A
notebook's own event loop and threads are not touched."""

from __future__ import annotations

import html
import json
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer import errors
from peer.errors import PeerError, UsageError
from peer.lab.report_curves import ReportCurve, curves_of
from peer.python_child import run_python, without_options

Option = str | int | float | bool | Path | Iterable[str] | None
"""Value of a command's option: True adds a flag, False leaves it out, several values repeat the option."""


@dataclass(frozen=True)
class LabReport:
    """What `peer.simulate`, `peer.swarm` or `peer.compare` found. Shows itself in a notebook."""

    command: str
    """The command line that gives the same report in a terminal."""
    data: dict[str, Any] = field(repr=False)
    """The numbers, as the command writes them in JSON."""

    @property
    def curves(self) -> list[ReportCurve]:
        """Return the loss curves: of each method, of each peer, or of the mean of all."""
        return [curve for curve in curves_of(self.data) if curve.losses]

    def _repr_html_(self) -> str:
        """Return a table of the single numbers, and the picture of the curves where matplotlib is installed."""
        numbers = self.data.get("swarm", self.data)
        shown = {name: value for name, value in numbers.items() if isinstance(value, int | float | str)}
        rows = "".join(
            f"<tr><th>{html.escape(name.replace('_', ' '))}</th><td>{html.escape(_shown(value))}</td></tr>"
            for name, value in shown.items()
        )
        return f"<code>{html.escape(self.command)}</code><table>{rows}</table>{self._picture()}"

    def _picture(self) -> str:
        try:
            from peer.lab.report_plot import drawn_curves
        except ImportError:
            return "<p>For the curves: pip install matplotlib</p>"
        picture = drawn_curves(self.curves)
        return picture[picture.find("<svg") :]


def simulate(preset: str = "gossip", *, peers: int = 16, hours: float = 2.0, **options: Option) -> LabReport:
    """Simulate a swarm in virtual time, as `peer simulate` does. Nothing leaves this machine.

    Args:
        preset: The synchronization method: `peer help presets`.
        peers: Of the swarm.
        hours: Virtual ones.
        options: Further options of the command, as `link="home"`, `churn=0.5` or `trainer="tiny"`, which learns.

    Raises the PeerError that ended the command."""
    return _run("simulate", (), {"preset": preset, "peers": peers, "hours": hours, **options})


def swarm(preset: str = "gossip", *, peers: int = 4, rounds: int = 10, **options: Option) -> LabReport:
    """Run a complete swarm of real processes on this machine, as `peer swarm` does.

    Args:
        preset: The synchronization method: `peer help presets`.
        peers: Of the swarm.
        rounds: Exchanges of every fragment.
        options: Further options of the command, as `kill="2@30"` or `chaos="gentle"`.

    Raises the PeerError that ended the command."""
    return _run("swarm", (), {"preset": preset, "peers": peers, "rounds": rounds, **options})


def compare(*manifests: str | Path, peers: int = 4, **options: Option) -> LabReport:
    """Play several methods at equal tokens, as `peer compare` does.

    Args:
        manifests: Files, or names of presets and baselines, as `"gossip"` and `"single"`.
        peers: Of each swarm.
        options: Further options of the command, as `seeds=3`, `virtual=True` or `worth=True`.

    Raises the PeerError that ended the command."""
    return _run("compare", tuple(map(str, manifests)), {"peers": peers, **options})


def _run(name: str, arguments: Sequence[str], options: dict[str, Option]) -> LabReport:
    words = [name, *arguments, *_words(options)]
    with tempfile.TemporaryDirectory(prefix="peer-report-") as folder:
        file = Path(folder) / "report"
        written = ["--report", str(file)] if name == "swarm" else ["--json"]
        done = run_python(
            "peer",
            *words,
            *written,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=without_options(),
        )
        if done.returncode != 0:
            raise _error(done.returncode, done.stderr)
        text = file.read_text() if name == "swarm" else done.stdout
    return LabReport(" ".join(["peer", *words]), json.loads(text))


def _words(options: dict[str, Option]) -> list[str]:
    words = list[str]()
    for name, value in options.items():
        option = f"--{name.strip('_').replace('_', '-')}"  # `set_=` too: a name may be Python's own
        if option in ("--json", "--report"):
            raise UsageError(f"{option} is what this function adds by itself", "Leave it out: the report is returned.")
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            many = [value] if isinstance(value, str | int | float | Path) else value
            words += [word for one in many for word in (option, str(one))]
    return words


def _error(code: int, printed: str) -> PeerError:
    """Return the error of a command, of its own kind, with the sentences that it printed."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PeerError)]
    kind = next((one for one in kinds if one.exit_code == code), PeerError)
    lines = [line.strip() for line in printed.strip().splitlines()]
    parts = dict[str, str]()
    for line in lines:
        head, colon, rest = line.partition(":")
        if colon and head.lower() in ("error", "why", "fix"):
            parts[head.lower()] = rest.strip()
    return kind(
        parts.get("error") or (lines[-1] if lines else f"exit code {code}"), parts.get("fix", ""), parts.get("why", "")
    )


def _shown(value: float | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
