"""The lab's Python functions: reports of real commands, and their errors."""

from __future__ import annotations

from typing import Any

import pytest

import peer
from peer.errors import ManifestError, PeerError, SwarmFailed, UsageError
from peer.lab import from_python
from peer.lab.from_python import LabReport

MARKS = [{"round": n, "tokens": n, "bytes": n, "seconds": n, "loss": 5.0 - n} for n in range(3)]
REPORT = LabReport(
    "peer compare <b>", {"peers": 4, "place": "here & now", "methods": [{"name": "gossip", "curve": MARKS}]}
)


@pytest.mark.processes
def test_a_comparison_in_virtual_time_has_a_curve_for_each_method() -> None:
    report = peer.compare("gossip", "none", virtual=True, steps=40, peers=2)
    assert report.command == "peer compare gossip none --peers 2 --virtual --steps 40"
    assert [curve.name for curve in report.curves] == ["gossip", "none"]
    assert all(curve.losses[-1] < curve.losses[0] for curve in report.curves)


@pytest.mark.processes
def test_the_error_of_a_command_is_raised_as_what_it_is() -> None:
    with pytest.raises(ManifestError, match=r"sync\.preset=nosuch") as raised:
        peer.simulate("nosuch", peers=2)
    assert raised.value.fix


def test_options_become_those_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()

    def run(name: str, arguments: Any, options: Any) -> LabReport:
        asked.append([name, *arguments, *from_python._words(options)])
        return REPORT

    monkeypatch.setattr(from_python, "_run", run)
    peer.swarm("diloco", peers=3, kill=["2@5", "3@6"], set_="sync_every=4", chaos=None, as_json=False)
    peer.simulate(step_seconds=0.5)
    assert asked == [
        [
            "swarm",
            "--preset",
            "diloco",
            "--peers",
            "3",
            "--rounds",
            "10",
            "--kill",
            "2@5",
            "--kill",
            "3@6",
            "--set",
            "sync_every=4",
        ],
        ["simulate", "--preset", "gossip", "--peers", "16", "--hours", "2.0", "--step-seconds", "0.5"],
    ]
    with pytest.raises(UsageError, match="by itself"):
        from_python._words({"report": "x.json"})


def test_a_report_shows_its_numbers_and_its_curves_in_a_notebook() -> None:
    shown = REPORT._repr_html_()
    assert "peer compare &lt;b&gt;" in shown
    assert "<td>here &amp; now</td>" in shown
    assert "<svg" in shown
    assert "gossip" in shown


@pytest.mark.parametrize(
    ("code", "printed", "kind", "found"),
    [
        (SwarmFailed.exit_code, "peer 1 starts\nerror: peer 1 died\n  why: w\n  fix: f\n", SwarmFailed, "peer 1 died"),
        (2, "Usage: peer swarm\nError: No such option '--x'\n", UsageError, "No such option '--x'"),
        (-9, "", PeerError, "exit code -9"),
    ],
)
def test_what_a_command_printed_is_the_error(code: int, printed: str, kind: type[PeerError], found: str) -> None:
    error = from_python._error(code, printed)
    assert type(error) is kind
    assert error.found == found
