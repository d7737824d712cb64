"""`peer.found`: the folder that it writes, and the models that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from blake3 import blake3
from torch import Tensor, nn

from peer.attached.found import FoundedRun, found
from peer.attached.params import match_tensors
from peer.attached.swarm import check
from peer.errors import ManifestError, ModelError, PeerError, UsageError
from peer.identity import load_or_create
from peer.joining.preflight import check_training_loop
from peer.node.operator.initial_state import FirstFiles, first_state
from peer.run.files.artifact_folder import artifact_files, needed_artifacts, tensors_beside
from peer.run.manifest import load_signed
from peer.run.memory import memory_need
from peer.run.model_layout import layout_for
from peer.run.resolve import resolve
from peer.run.sections import CustomSection
from peer.trainer.models.flat import views_of
from tests.support.custom_run import small_cnn


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight


class Adapted(nn.Module):
    """A frozen bf16 base with a trained adapter, as LoRA makes it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8).bfloat16().requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)


def names_of(run: FoundedRun) -> list[str]:
    tensors = tensors_beside(run.manifest, load_signed(run.manifest).manifest)
    assert tensors is not None
    return [tensor.name for tensor in tensors]


def test_the_folder_has_all_that_a_node_serves(tmp_path: Path) -> None:
    model = small_cnn()
    run = found(model, tmp_path / "run", rounds=7, sync_every=20, clock="steps", title="CNN for digits")
    signed = load_signed(run.manifest)
    manifest, section = signed.manifest, signed.manifest.model
    assert isinstance(section, CustomSection)
    assert (section.title, section.parameters) == ("CNN for digits", run.parameters)
    assert run.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (signed.run_id.hex(), manifest.operator) == (run.run_id, run.operator)
    assert (manifest.format, manifest.data.kind, manifest.admission.kind) == (7, "own", "invited")
    assert (manifest.sync.preset, manifest.sync.clock, manifest.sync.sync_every, manifest.rounds) == (
        *("noloco", "steps", 20.0),
        7,
    )
    assert load_or_create(tmp_path / "run" / "identity.key").peer_id == run.operator
    assert list(needed_artifacts(manifest)) == ["layout"]
    files = artifact_files(run.manifest)
    assert files.keys() == {section.layout.digest, manifest.init}
    assert all(blake3(file.read_bytes()).hexdigest() == digest for digest, file in files.items())
    flat = np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])
    assert np.array_equal(np.fromfile(files[manifest.init], "<f4"), flat)
    assert run.serve_command == f"peer bootstrap {run.manifest} --home {tmp_path / 'run'}"
    assert run.invite_command.startswith(f"peer ticket invite PEER_ID --run {run.manifest}")


def test_a_node_gives_the_first_weights_and_no_trainer_is_counted(tmp_path: Path) -> None:
    model = small_cnn()
    run = found(model, tmp_path / "run", preset="diloco")
    manifest = load_signed(run.manifest).manifest
    tensors = tensors_beside(run.manifest, manifest)
    layout = layout_for(manifest.model, resolve(manifest.sync), tensors)
    files = FirstFiles(tensors, init=artifact_files(run.manifest)[manifest.init])
    state = dict(views_of(first_state(manifest, layout, None, lambda line: None, files).params, layout))
    assert all(torch.equal(state[name], parameter) for name, parameter in model.named_parameters())
    need = memory_need(manifest, tensors)
    assert need.trainer == 0
    assert need.shared == 8 * run.parameters
    check(run.manifest, model)


def test_tied_weights_count_once(tmp_path: Path) -> None:
    run = found(Tied(), tmp_path / "run")
    assert names_of(run) == ["embed.weight"]
    assert run.parameters == 28
    check(run.manifest, Tied())


def test_only_what_is_trained_is_the_run_s(tmp_path: Path) -> None:
    run = found(Adapted(), tmp_path / "run")
    assert names_of(run) == ["down.weight", "up.weight"]
    check(run.manifest, Adapted())


def test_names_are_those_of_the_plain_model(tmp_path: Path) -> None:
    run = found({"module._orig_mod.0.weight": torch.ones(2, 3)}, tmp_path / "run")
    assert names_of(run) == ["0.weight"]
    tensors = tensors_beside(run.manifest, load_signed(run.manifest).manifest)
    assert tensors is not None
    match_tensors(nn.Sequential(nn.Linear(3, 2, bias=False)), tensors)


def test_a_key_that_exists_signs(tmp_path: Path) -> None:
    key = tmp_path / "operator.key"
    operator = load_or_create(key)
    run = found(small_cnn(), tmp_path / "run", identity_path=key, admission="open")
    assert run.operator == operator.peer_id
    assert not (tmp_path / "run" / "identity.key").exists()
    assert run.serve_command.endswith(f"--identity-path {key}")
    assert run.invite_command == ""


SHARED = torch.ones(3)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: small_cnn().bfloat16(), "0.weight is torch.bfloat16, and a run has torch.float32"),
        (lambda: small_cnn().requires_grad_(requires_grad=False), "no parameter with requires_grad"),
        (lambda: small_cnn().to("meta"), "0.weight is on the meta device"),
        (dict, "no tensor"),
        (lambda: {"one": SHARED, "other": SHARED}, "one and other share their memory"),
        (lambda: {"one": torch.ones(0, 3)}, r"one \[0, 3\] has no values"),
        (lambda: {"one": torch.full((3,), float("nan"))}, "one cannot begin a run: the root mean square"),
        (lambda: {"one\n": torch.ones(3)}, "no run can have this model: entry 0"),
        (lambda: {"one": torch.ones([1] * 9)}, "no run can have this model: tensor one"),
    ],
)
def test_a_model_that_cannot_be_a_run_is_refused_and_leaves_nothing(
    model: Callable[[], nn.Module | dict[str, Tensor]], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=words):
        found(model(), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"rounds": 0}, ManifestError, "train.total_rounds"),
        ({"title": "a\nb"}, ManifestError, "model.title"),
        ({"preset": "streaming-noloco"}, ManifestError, "sync.fragments"),
        ({"settings": ["no_such=1"]}, UsageError, "no key 'no_such'"),
        ({"settings": ["data.kind=stdlib"]}, ManifestError, 'data.kind: a model of kind "custom"'),
    ],
)
def test_a_run_that_cannot_be_leaves_nothing(
    given: dict[str, object], error: type[PeerError], words: str, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(error, match=words):
        found(small_cnn(), tmp_path / "run", **given)  # type: ignore[arg-type]
    assert list((tmp_path / "run").iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(UsageError, match="exists"):
        found(small_cnn(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_built_in_loop_is_refused_and_an_attached_one_is_not(tmp_path: Path) -> None:
    manifest = load_signed(found(small_cnn(), tmp_path / "run", title="CNN").manifest).manifest
    check_training_loop(manifest, attached=True)
    with pytest.raises(ModelError, match=r"trains a model of its users' own \(CNN\)") as caught:
        check_training_loop(manifest, attached=False)
    assert "peer.join" in caught.value.fix
