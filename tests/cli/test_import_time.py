"""Slow libraries are not imported early: `peer --help` is fast, and a new trainer imports torch while its daemon looks
for the run."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

HEAVY = {"torch", "grpc", "hivemind", "numpy", "pydantic", "safetensors", "cryptography", "rich", "google"}
NETWORK = {"grpc", "hivemind", "google.protobuf", "peer.transport", "peer.discovery", "peer.node", "peer.lab"}


def loaded(code: str) -> list[str]:
    """Return the names of the modules that a new interpreter has imported after running this code, in the order in
    which their import began."""
    program = f"{code}\nimport sys\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    result = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False, timeout=180
    )
    assert result.returncode == 0, result.stderr
    return result.stderr.split()


HELP = (
    "import contextlib\nfrom peer.cli.main import main\nwith contextlib.suppress(SystemExit):\n    main({arguments!r})"
)


LIGHT = {
    "peer.codes",
    "peer.early_signals",
    "peer.errors",
    "peer.observe",
    "peer.observe.formatting",
    "peer.observe.output",
    "peer.whole_files",
}
"""All of our modules that the command line needs for its help."""


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    modules = loaded(HELP.format(arguments=arguments))
    assert "peer.cli.main" in modules
    assert set(modules) & HEAVY == set()
    assert {name for name in modules if name.startswith("peer.") and not name.startswith("peer.cli")} <= LIGHT


RESULT = ("eval", "generate", "export")


@pytest.mark.parametrize(
    "command", ["join", "bootstrap", "status", "leave", "pause", "swarm", "plan", "simulate", *RESULT]
)
def test_help_of_a_command_does_not_wait_for_torch_or_the_network(command: str) -> None:
    modules = loaded(HELP.format(arguments=[command, "--help"]))
    assert f"peer.cli.{command}" in modules
    assert set(modules) & {"torch", "grpc", "hivemind"} == set()


def test_a_comparison_without_a_plot_loads_no_library_for_plots() -> None:
    modules = loaded("import peer.cli.compare, peer.lab.compare.play, peer.lab.compare.result")
    assert "matplotlib" not in modules


def test_a_daemon_starts_its_trainer_before_it_loads_torch() -> None:
    """The code that starts the trainer must not import torch first, so that both processes import it in parallel."""
    modules = loaded("import peer.trainer.prestart")
    assert set(modules) & {"torch", "grpc", "hivemind", "numpy"} == set()


def test_a_fresh_trainer_listens_to_its_daemon_before_it_loads_torch() -> None:
    """A trainer that imported torch first would notice the end of its daemon only seconds later."""
    modules = loaded("import peer.trainer.__main__")
    assert "peer.trainer.ipc" in modules
    assert set(modules) & {"torch", "numpy", *NETWORK} == set()


def test_a_trainer_loads_no_network_and_no_compiler() -> None:
    """Importing torch's compiler takes seconds, and a trainer does not need it for its parameters."""
    code = "from peer.trainer.models.llama import LlamaSection, layout_of\nlayout_of(LlamaSection())"
    modules = loaded(f"import peer.trainer.worker\n{code}")
    assert set(modules) & {"torch", "torch._dynamo", "sympy", *NETWORK} == {"torch"}


def test_a_daemon_loads_grpc_after_its_settings_and_of_hivemind_only_the_directory() -> None:
    """gRPC reads environment variables when it is imported."""
    order = loaded("import peer.node.peer, hivemind.p2p, hivemind.dht\nassert hivemind.__path__")
    assert order.index("peer.transport") < order.index("grpc")
    assert set(order) & {"scipy", "hivemind.averaging", "hivemind.moe", "hivemind.optim"} == set()
