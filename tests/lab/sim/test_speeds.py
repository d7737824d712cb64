"""Computing speeds: spaced by equal factors, log-normal, or drawn from a table."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
from click.testing import CliRunner

from peer.cli.simulate import command
from peer.errors import UsageError
from peer.lab.compare.play import VirtualPlace
from peer.lab.sim.drawn_values import quantiles_of
from peer.lab.sim.run import SimulationSettings, simulate
from peer.lab.sim.speeds import speeds_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.observe.events import RoundEnded
from peer.run.manifest import default_text, derive


@pytest.mark.parametrize("given", [4.0, "4", "4.0"])
def test_a_number_spaces_the_speeds_by_equal_factors(given: float | str) -> None:
    speeds = speeds_of(given)
    assert [speeds.speed(0, number, 3) for number in range(3)] == pytest.approx([1, 2, 4])
    assert speeds.slowest(0, 3) == 1
    assert speeds.drawn([1.0]) is None


def test_log_normal_speeds_have_their_median_and_deviation() -> None:
    speeds = speeds_of("lognormal:0.5")
    logs = [math.log(speeds.speed(0, number, 10_000)) for number in range(10_000)]
    assert statistics.fmean(logs) == pytest.approx(0, abs=0.02)
    assert statistics.stdev(logs) == pytest.approx(0.5, rel=0.03)


def test_a_table_of_speeds_has_its_quantiles(tmp_path: Path) -> None:
    file = tmp_path / "speeds.csv"
    file.write_text("quantile,speed\n0.1,0.3\n0.5,1\n0.9,4\n")
    drawn = [speeds_of(str(file)).speed(0, number, 9) for number in range(20_000)]
    assert quantiles_of(drawn) == pytest.approx((0.3, 1, 4), rel=0.1)


def test_a_drawn_speed_depends_on_seed_and_number_alone() -> None:
    speeds = speeds_of("lognormal:1")
    assert speeds.speed(0, 3, 4) == speeds.speed(0, 3, 400) != speeds.speed(1, 3, 4)


def test_a_step_takes_the_seconds_over_the_speed_and_steps_are_counted_at_the_slowest() -> None:
    settings = SimulationSettings(
        peers=4,
        manifest=derive(default_text(), ["seed=2", "sync.clock=steps", "sync.sync_every=60"]),
        hours=0.1,
        parameters=1024,
        speeds="lognormal:0.5",
    )
    seen: list[SimulatedSwarm] = []
    report = simulate(settings, seen.append)
    slowest = speeds_of(settings.speeds).slowest(2, 4)
    assert seen[0].total_rounds == int(360 * slowest / 60)
    last = max(event.round for peer in seen[0].peers for event in peer.events if isinstance(event, RoundEnded))
    assert last == seen[0].total_rounds - 1
    (drawn,) = report.drawn
    assert drawn.quantiles["speed"] == quantiles_of([speeds_of("lognormal:0.5").speed(2, n, 4) for n in range(4)])
    assert report.ledger_imbalance == 0


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ("0.5", "from 1 to 1000"),
        ("nan", "from 1 to 1000"),
        ("lognormal:0", "above 0"),
        ("lognormal:3", "at most 2"),
        ("lognormal", "lognormal:SIGMA"),
        ("fast", "a number"),
    ],
)
def test_impossible_speeds_are_refused(given: str, fix: str) -> None:
    with pytest.raises(UsageError) as refused:
        speeds_of(given)
    assert fix in refused.value.fix


def test_the_command_takes_a_distribution() -> None:
    words = ["--peers", "3", "--hours", "0.1", "--sync-every", "60", "--parameters", "1024"]
    ran = CliRunner().invoke(command, [*words, "--speeds", "lognormal:0.3", "--json"], catch_exceptions=False)
    (drawn,) = json.loads(ran.stdout)["drawn"]
    assert drawn["option"] == "--speeds lognormal:0.3"
    assert VirtualPlace(speeds="lognormal:0.3").description.endswith(", speeds lognormal:0.3")
