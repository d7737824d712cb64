"""Findings about the machine, from given facts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from peer.errors import TorchWrong
from peer.node.doctor.finding import Severity
from peer.node.doctor.machine import Accelerator, accelerators, kernels, processor, python, torch_version

GPU = Accelerator("NVIDIA H100", 80 * 10**9, 60 * 10**9)


def test_the_interpreter_is_named() -> None:
    assert sys.executable in python().measured


def test_another_torch_is_an_error_with_its_own_fix() -> None:
    def check() -> str:
        raise TorchWrong("torch 2.12.0 is installed, this program is made for torch 2.13.0", "Run: pip install torch")

    found = torch_version(check)
    assert (found.severity, found.fix) == (Severity.ERROR, "Run: pip install torch")
    assert torch_version(lambda: "2.13.0+cpu").measured == "2.13.0+cpu"


def test_a_busy_processor_is_a_warning() -> None:
    assert processor(2, 0.3).severity is Severity.OK
    busy = processor(2, 3.5)
    assert busy.severity is Severity.WARNING
    assert "2 cores, for which 3.5 processes ran or waited" in busy.measured
    assert processor(1, 0.3).measured.startswith("1 core, ")


def test_a_gpu_that_torch_cannot_use_is_a_warning() -> None:
    found = accelerators([GPU], "auto", "2.13.0+cpu")
    assert found.severity is Severity.WARNING
    assert "NVIDIA H100, 60.0 GB of 80.0 GB free" in found.measured
    assert "pytorch.org" in found.fix


@pytest.mark.parametrize(("wanted", "build"), [("auto", "2.13.0"), ("cpu", "2.13.0+cpu")])
def test_a_gpu_that_is_used_or_not_wanted_is_fine(wanted: str, build: str) -> None:
    assert accelerators([GPU], wanted, build).severity is Severity.OK


def test_no_gpu_is_fine() -> None:
    assert accelerators([], "auto", "2.13.0").severity is Severity.OK


def test_missing_kernels_are_a_warning_with_a_command() -> None:
    found = kernels("peer.codec._kernels_that_are_not_there", "best")
    assert found.severity is Severity.WARNING
    assert "not installed" in found.measured
    assert sys.executable in found.fix


def test_kernels_that_cannot_be_loaded_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_kernels.abi3.so").write_bytes(b"no library")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = kernels("broken_kernels", "best")
    assert found.severity is Severity.WARNING
    assert "cannot be loaded" in found.measured


def test_kernels_that_are_turned_off_are_told() -> None:
    assert kernels(wish="torch").fix == "Unset PEER_KERNELS."
