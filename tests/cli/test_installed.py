from __future__ import annotations

from importlib import metadata

import pytest

from peer.cli.installed import check_torch, fits, loading_torch
from peer.errors import TorchWrong


def installed(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    def told(name: str) -> str:
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", told)
    monkeypatch.setattr(metadata, "requires", lambda name: ["torchvision>=1", "torch<2.15,>=2.13", "numpy>=2.0"])


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.14.1+cu130"])
def test_every_build_of_a_version_in_the_range_will_do(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    installed(monkeypatch, version)
    check_torch()


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (None, "not installed"),
        ("2.9.1", "torch 2.9.1 is installed .* for torch <2.15,>=2.13"),
        ("2.15.0+cpu", "torch 2.15.0\\+cpu is installed"),
    ],
)
def test_none_or_another_is_named_with_the_command_that_helps(
    monkeypatch: pytest.MonkeyPatch, version: str | None, words: str
) -> None:
    installed(monkeypatch, version)
    with pytest.raises(TorchWrong, match=words) as caught:
        check_torch()
    assert caught.value.fix.endswith("install --force-reinstall 'torch<2.15,>=2.13'")


@pytest.mark.parametrize(
    ("version", "bounds", "fit"),
    [
        ("2.13.0", ">=2.13", True),
        ("2.13", "==2.13.0", True),
        ("2.9.1", ">=2.13", False),
        ("2.15.0.dev20260901", "<2.15", False),
        ("2.14.9", "<2.15,>=2.13", True),
        ("anything", "", True),
    ],
)
def test_versions_are_compared_by_number(version: str, bounds: str, fit: bool) -> None:
    assert fits(version, bounds) is fit


def test_another_modules_failure_is_not_blamed_on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "2.13.0")
    with pytest.raises(ImportError, match="numpy"), loading_torch():
        raise ImportError("no numpy", name="numpy")
    with pytest.raises(TorchWrong, match="cannot be loaded"), loading_torch():
        raise ImportError("no torch", name="torch._C")
