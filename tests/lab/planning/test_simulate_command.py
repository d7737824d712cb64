"""`peer simulate`: its output, and the modules that it does not import."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from peer.cli.main import peer
from peer.errors import UsageError

MODEL = ("--params", "1e9", "--layers", "24", "--step-seconds", "0.1")


def told(*arguments: str) -> str:
    result = CliRunner().invoke(peer, ["simulate", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_alone_it_shows_its_help() -> None:
    assert told() == told("--help")
    assert "utilization" in told()
    assert "latency" in told()


def test_utilization_as_json() -> None:
    report = json.loads(told("utilization", *MODEL, "--every", "100", "--preset", "streaming-diloco",
                             "--fragment-layers", "3", "--delay", "1", "--bits", "4", "--json"))  # fmt: skip
    assert list(report) == ["gbit_per_s"]
    assert list(report["gbit_per_s"]) == ["50", "80", "90", "95", "99"]
    assert list(report["gbit_per_s"].values()) == pytest.approx([0.4, 0.9, 1.7, 2.0, 3.0], rel=0.2)


@pytest.mark.parametrize(("preset", "bits"), [("ddp", "16"), ("diloco", "16"), ("streaming-diloco", "4")])
def test_the_bits_follow_the_preset_unless_given(preset: str, bits: str) -> None:
    method = ("utilization", *MODEL, "--preset", preset, "--json")
    assert told(*method) == told(*method, "--bits", bits) != told(*method, "--bits", "8")


@pytest.mark.parametrize("preset", ["ddp", "diloco"])
def test_presets_that_wait_do_not_look_at_delay_and_fragments(preset: str) -> None:
    method = ("utilization", *MODEL, "--preset", preset, "--json")
    assert told(*method) == told(*method, "--delay", "5", "--fragment-layers", "7")


def test_tables_for_a_person() -> None:
    lines = told("utilization", *MODEL).splitlines()
    assert lines[0].split() == ["computing", "needs", "a", "link", "of"]
    assert [line.split()[0] for line in lines[1:]] == ["50", "80", "90", "95", "99"]
    tree, pair, ratio = (line.split() for line in told("latency", "--peers", "1024", "--std", "0.5").splitlines())
    assert "1024" in tree
    assert float(ratio[-1]) == pytest.approx(float(tree[-4]) / float(pair[-1]), rel=1e-3)


def test_latency_as_json() -> None:
    assert json.loads(told("latency", "--peers", "1024", "--std", "0", "--json")) == {"ratio": 10.0}
    assert json.loads(told("latency", "--peers", "1024", "--std", "0.5", "--json")) == {
        "ratio": pytest.approx(12.40, abs=0.01)
    }


def test_bad_values_name_the_flag_and_a_fix() -> None:
    with pytest.raises(UsageError, match="--fragment-layers 5 does not divide --layers 24") as refusal:
        told("utilization", *MODEL, "--fragment-layers", "5")
    assert "1, 2, 3, 4, 6, 8, 12, 24" in refusal.value.fix
    with pytest.raises(UsageError, match="--peers is 1"):
        told("latency", "--peers", "1", "--std", "0.5")


@pytest.mark.processes
def test_planning_needs_neither_torch_nor_the_network() -> None:
    script = (
        "import sys\nfrom peer.cli.main import main\n"
        "try:\n    main(['simulate', 'latency', '--peers', '4', '--std', '0.5'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'grpc', 'hivemind', 'pydantic') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=180, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
