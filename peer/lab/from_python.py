"""The lab's commands as Python functions: `peer.simulate`, `peer.swarm` and `peer.compare`.

Each function runs the command of the same name as a child process, with its keyword arguments as options, and returns a
report. A notebook's own event loop and threads are not touched."""

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
"""Value of an option: True adds a flag, False and None leave the option out, several values repeat it."""


@dataclass(frozen=True)
class LabReport:
    """The report of `peer.simulate`, `peer.swarm` or `peer.compare`. A notebook shows it as a table with a plot."""

    command: str
    """The command line that gives the same report in a terminal."""
    data: dict[str, Any] = field(repr=False)
    """The numbers, as the command writes them in JSON."""

    @property
    def curves(self) -> list[ReportCurve]:
        """Return the loss curves: one for each method (compare), for each peer (swarm), or of the mean of all peers
        (simulate)."""
        return [curve for curve in curves_of(self.data) if curve.losses]

    def _repr_html_(self) -> str:
        """Return a table of the report's scalar values, and a plot of the curves if matplotlib is installed."""
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
        preset: The synchronization method; `peer help presets` lists them.
        peers: Number of peers in the swarm.
        hours: Simulated hours.
        options: Further options of the command, such as `link="us-2022"`, `churn=0.5` or `trainer="tiny"`, which
            learns.

    Raises the PeerError that ended the command."""
    return _run("simulate", (), {"preset": preset, "peers": peers, "hours": hours, **options})


def swarm(preset: str = "gossip", *, peers: int = 4, rounds: int = 10, **options: Option) -> LabReport:
    """Run a complete swarm of real processes on this machine, as `peer swarm` does.

    Args:
        preset: The synchronization method; `peer help presets` lists them.
        peers: Number of peers in the swarm.
        rounds: Number of exchanges of each fragment.
        options: Further options of the command, such as `kill="2@30"` or `chaos="gentle"`.

    Raises the PeerError that ended the command."""
    return _run("swarm", (), {"preset": preset, "peers": peers, "rounds": rounds, **options})


def compare(*manifests: str | Path, peers: int = 4, **options: Option) -> LabReport:
    """Train with several methods at equal tokens, as `peer compare` does.

    Args:
        manifests: Manifest files, or names of presets and baselines, such as `"gossip"` and `"single"`.
        peers: Number of peers in each swarm.
        options: Further options of the command, such as `seeds=3`, `virtual=True` or `worth=True`.

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
    """Return the keyword arguments as words of a command line. Raises UsageError for options that this module sets
    itself."""
    words = list[str]()
    for name, value in options.items():
        # `set_` and the like work too, for names that Python or this module reserves
        option = f"--{name.strip('_').replace('_', '-')}"
        if option in ("--json", "--report"):
            raise UsageError(f"{option} is what this function adds by itself", "Leave it out: the report is returned.")
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            many = [value] if isinstance(value, str | int | float | Path) else value
            words += [word for one in many for word in (option, str(one))]
    return words


def _error(code: int, printed: str) -> PeerError:
    """Return the error that a command printed, as the PeerError subclass of its exit code."""
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
