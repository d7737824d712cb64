"""Availability from traces and models: sessions have their distribution and depend on seed and peer alone, peers that
are off at the start join later, and bad files are refused with line and column."""

from __future__ import annotations

import itertools
import json
import random
import statistics
from pathlib import Path

import pytest
from click.testing import CliRunner

from peer.cli.simulate import command
from peer.errors import UsageError
from peer.lab.sim.availability import (
    HOUR,
    HostClass,
    Lengths,
    absent_at_first,
    availability_of,
    session_faults,
    sessions_of,
)
from peer.lab.sim.faults import Fault
from peer.lab.sim.run import SimulationSettings, simulate
from peer.lab.sim.swarm import SimulatedSwarm
from peer.observe.events import RoundEnded, StateFetched
from peer.run.manifest import default_text, derive


def written(folder: Path, text: str) -> str:
    path = folder / "on.csv"
    path.write_text(text)
    return str(path)


TRACE = "host,start,end\na,1000,2000\na,3000,4000\n"


def test_a_peer_plays_a_host_from_a_random_moment_on(tmp_path: Path) -> None:
    availability = availability_of(written(tmp_path, TRACE))
    begins = []
    for number in range(200):
        sessions = availability.sessions(0, number, 9000.0)
        assert all(end - begin <= 2000 + 1e-6 for begin, end in sessions)  # the last session and the first one, joined
        assert sum(end - begin for begin, end in sessions) == pytest.approx(
            6000, abs=1.5
        )  # two of every three thousand
        begins.append(sessions[0][0])
    assert sum(begin == 0 for begin in begins) / 200 == pytest.approx(2 / 3, abs=0.1)
    assert max(begins) > 800  # off at the start


def test_sessions_depend_on_seed_and_number_alone() -> None:
    availability = availability_of("seti-at-home")
    first = [availability.sessions(0, number, 1e6) for number in range(20)]
    random.seed(1)
    assert [availability.sessions(0, number, 1e6) for number in range(20)] == first
    assert [availability.sessions(1, number, 1e6) for number in range(20)] != first


@pytest.mark.parametrize(
    "lengths",
    [
        Lengths("exponential", 2.0),
        Lengths("weibull", 0.7, 3.0),
        Lengths("gamma", 0.5, 4.0),
        Lengths("lognormal", 0.3, 0.9),
    ],
    ids=lambda lengths: lengths.family,
)
def test_lengths_have_their_mean_and_the_one_around_a_moment_is_longer(lengths: Lengths) -> None:
    rng = random.Random(3)
    drawn = [lengths.draw(rng) for _ in range(40_000)]
    around = [lengths.draw_around(rng) for _ in range(40_000)]
    mean = statistics.fmean(drawn)
    assert mean == pytest.approx(lengths.mean, rel=0.05)
    # by the definition of length-biased sampling: E[L^2] / E[L]
    assert statistics.fmean(around) == pytest.approx(statistics.fmean(x * x for x in drawn) / mean, rel=0.1)


def test_the_share_of_peers_that_are_on_is_the_same_at_all_times() -> None:
    hosts = HostClass(1.0, Lengths("weibull", 0.7, 3.0), Lengths("exponential", 5.0))
    expected = hosts.on.mean / (hosts.on.mean + hosts.off.mean)
    on = [0, 0, 0]
    for number in range(4000):
        sessions = list(itertools.takewhile(lambda span: span[0] < 40 * HOUR, hosts.sessions(random.Random(number))))
        for place, at in enumerate((1.0, 10 * HOUR, 39 * HOUR)):
            on[place] += any(begin <= at < end for begin, end in sessions)
    assert [count / 4000 for count in on] == pytest.approx([expected] * 3, abs=0.03)


def test_the_archive_format_is_read_with_and_without_a_head(tmp_path: Path) -> None:
    head = "event_id\tcomponent_id\tnode_id\tplatform_id\tnode_name\tevent_type\tevent_start_time\tevent_end_time\n"
    rows = "1\t1\t7\t0\thost\t1\t100.0\t200.0\n2\t1\t7\t0\thost\t0\t200.0\t500.0\n"
    assert availability_of(written(tmp_path, head + rows)).hosts == availability_of(written(tmp_path, rows)).hosts
    (host,) = availability_of(written(tmp_path, rows)).hosts
    assert (host.sessions_on, host.span) == (((100.0, 200.0),), (100.0, 500.0))  # type: ignore[union-attr]


def test_faults_follow_the_sessions_and_the_first_peer_stays(tmp_path: Path) -> None:
    availability = availability_of(written(tmp_path, TRACE))
    assert sessions_of(availability, 0, [5, 6], 100.0)[0] == [(0.0, 100.0)]
    sessions = [[(0.0, 100.0)], [(0.0, 30.0), (50.0, 100.0)], [(20.0, 60.0)], []]
    assert absent_at_first(sessions) == {2, 3}
    assert session_faults(sessions, 100.0) == (
        Fault("kill", 1, at=30.0),
        Fault("restart", 1, at=50.0),
        Fault("restart", 2, at=20.0),
        Fault("kill", 2, at=60.0),
    )


def test_a_peer_that_is_off_at_the_start_joins_later(tmp_path: Path) -> None:
    model = "weight,on,off\n1,exponential 0.2,exponential 0.2\n"
    settings = SimulationSettings(
        peers=6,
        manifest=derive(default_text(), ["seed=1", "sync.clock=seconds", "sync.sync_every=60"]),
        hours=0.5,
        parameters=1024,
        availability=written(tmp_path, model),
    )
    seen: list[SimulatedSwarm] = []
    report = simulate(settings, seen.append)
    sessions = sessions_of(availability_of(settings.availability), 1, range(6), 1800.0)
    late = [seen[0].peers[number] for number in absent_at_first(sessions) if sessions[number]]
    assert late
    for peer in late:
        first = sessions[peer.number][0][0]
        assert peer.times
        assert min(peer.times) >= first - 0.01
        assert any(isinstance(event, StateFetched) for event in peer.events)
    assert any(isinstance(event, RoundEnded) and event.outcome == "exchanged" for peer in late for event in peer.events)
    assert report.ledger_imbalance == 0
    assert report.live_due is not None
    on = sum(end - begin for each in sessions for begin, end in each)
    assert report.live_due <= on / 60 + 6  # no round is due while a peer is off
    assert report.participation is not None
    assert report.participation > 0.8


def test_a_peer_that_is_never_on_is_not_missed(tmp_path: Path) -> None:
    never = "node_id,event_type,event_start_time,event_end_time\n7,0,0,1000\n"
    words = ["--peers", "3", "--hours", "0.1", "--sync-every", "60", "--parameters", "1024"]
    ran = CliRunner().invoke(
        command, [*words, "--availability", written(tmp_path, never), "--json"], catch_exceptions=False
    )
    report = json.loads(ran.stdout)
    assert (report["solo"], report["due"], report["live_missed"]) == (6, 6, 0)
    assert report["ledger_imbalance"] == 0
    (drawn,) = report["drawn"]
    assert drawn["quantiles"]["on %"] == [0, 0, 100]
    assert "peer 0 is always on" in drawn["assumed"]


@pytest.mark.parametrize(
    ("text", "found", "fix"),
    [
        ("host,start,end\na,5,1\n", "line 2, column end: is 1, before start 5", "end of the session"),
        ("host,start,end\na,soon,1\n", "line 2, column start: is 'soon'", "in seconds"),
        ("host,start,stop\na,0,1\n", "line 1: there is no column 'stop'", "start"),
        ("host,start\na,0\n", "line 1: column end is missing", "host, start, end"),
        ("on,off\nweibull 1,exponential 1\n", "line 2, column on: is 'weibull 1'", "weibull SHAPE SCALE"),
        ("on,off\nnormal 1 1,exponential 1\n", "line 2, column on", "lognormal MU SIGMA"),
        ("on,off\nweibull 90 1,exponential 1\n", "SHAPE is 90", "0.05 to 10"),
        ("on,off\nexponential 0.01,exponential 1\n", "less than a minute", "hours"),
        ("on,off,weight\nexponential 1,exponential 1,0\n", "column weight: is 0 in all rows", "above 0"),
        ("on,weight\nexponential 1,1\n", "column off is missing", "on, off"),
        ("host,start,end\na,3,3\n", "has no session", "longer"),
    ],
)
def test_a_bad_file_is_refused_with_line_and_column(tmp_path: Path, text: str, found: str, fix: str) -> None:
    with pytest.raises(UsageError) as refused:
        availability_of(written(tmp_path, text))
    assert found in refused.value.found
    assert fix in refused.value.fix


def test_churn_beside_availability_is_refused() -> None:
    words = ["--peers", "3", "--hours", "1", "--churn", "1", "--availability", "seti-at-home"]
    with pytest.raises(UsageError, match="both define"):
        CliRunner().invoke(command, words, catch_exceptions=False)
