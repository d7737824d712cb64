from __future__ import annotations

from importlib import metadata

import pytest

from peer.cli.installed import check_torch, loading_torch
from peer.errors import TorchWrong


def installed(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    def told(name: str) -> str:
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", told)
    monkeypatch.setattr(metadata, "requires", lambda name: ["torchvision>=1", "torch==2.13.0", "numpy>=2.0"])


def test_the_pinned_version_of_any_build_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("2.13.0", "2.13.0+cpu", "2.13.0+cu128"):
        installed(monkeypatch, version)
        check_torch()


@pytest.mark.parametrize(("version", "words"), [(None, "not installed"), ("2.1.0", "torch 2.1.0 is installed")])
def test_none_or_another_is_named_with_the_command_that_helps(
    monkeypatch: pytest.MonkeyPatch, version: str | None, words: str
) -> None:
    installed(monkeypatch, version)
    with pytest.raises(TorchWrong, match=words) as caught:
        check_torch()
    assert caught.value.fix.endswith("torch==2.13.0")


def test_another_modules_failure_is_not_blamed_on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "2.13.0")
    with pytest.raises(ImportError, match="numpy"), loading_torch():
        raise ImportError("no numpy", name="numpy")
    with pytest.raises(TorchWrong, match="cannot be loaded"), loading_torch():
        raise ImportError("no torch", name="torch._C")
