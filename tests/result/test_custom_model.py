"""A custom model, whose code only the users' programs have: its tensors can be exported, and commands that compute with
it are refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from peer.attached.found import found
from peer.run.files.artifact_folder import artifact_files, tensors_beside
from peer.run.home import Home
from peer.run.manifest import load_signed, store_signed
from peer.run.model_layout import layout_for
from peer.run.resolve import resolve
from tests.support.custom_run import small_cnn
from tests.support.made_home import MadeHome, command


@pytest.fixture
def home(tmp_path: Path) -> MadeHome:
    file = found(small_cnn(), tmp_path / "operator", title="CNN").manifest
    signed, own = load_signed(file), Home(tmp_path / "home")
    run = own.run(signed.run_id)
    store_signed(run.manifest, signed)
    shutil.copytree(file.with_suffix(".artifacts"), own.artifacts)
    layout = layout_for(signed.manifest.model, resolve(signed.manifest.sync), tensors_beside(file, signed.manifest))
    made = MadeHome(own.path, signed, file, layout, run)
    assert signed.manifest.init in artifact_files(file)
    made.save(made.first(noise=0.1))
    return made


def test_an_export_has_the_tensors_by_their_names(home: MadeHome, tmp_path: Path) -> None:
    command("export", home.path, tmp_path / "out", "--format", "safetensors")
    model, tensors = small_cnn(), load_file(tmp_path / "out" / "model.safetensors")
    model.load_state_dict(tensors)
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.equal(flat, home.first(noise=0.1))
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| model | a model of its users' own (CNN), " in card
    assert "| loss | not measured: the model's code is known to its users' own training loops alone |" in card
    assert "language model" not in card
    assert "text-generation" not in card


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("export", "HOME", "OUT"), "the format hf"),
        (("eval", "HOME"), "peer eval"),
        (("generate", "HOME", "--prompt", "once"), "peer generate"),
    ],
)
def test_what_would_compute_it_is_refused(words: tuple[str, ...], what: str, home: MadeHome, tmp_path: Path) -> None:
    places = {"HOME": home.path, "OUT": tmp_path / "out"}
    told = command(*(places.get(word, word) for word in words), code=23)
    assert f"{what} cannot take the model of run 'custom'" in told
    assert not (tmp_path / "out").exists()


def test_an_order_to_evaluate_is_not_carried_out(home: MadeHome, tmp_path: Path) -> None:
    command("export", home.path, tmp_path / "out", "--format", "safetensors", "--eval", code=61)
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_who_checks_an_open_run_is_cautioned(tmp_path: Path) -> None:
    for admission, cautions in (("open", 1), ("invited", 0)):
        run = found(small_cnn(), tmp_path / admission, admission=admission)  # type: ignore[arg-type]
        shown = command("manifest", "check", run.manifest, "--json")
        assert shown.count('"admission.kind":') == cautions
        assert "optimizer.lr" not in shown
