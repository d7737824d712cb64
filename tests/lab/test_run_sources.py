"""A user's own manifest in `peer swarm` and `peer compare`: every file that it names is found as `peer bootstrap` finds
it, and a missing one is reported before anything starts."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from peer.cli.main import peer
from peer.errors import DataError, ManifestError, PeerError, UsageError
from peer.identity import Identity, load_or_create
from peer.joining.artifacts import operator_files
from peer.lab.compare import play
from peer.lab.localswarm import run as swarm_module
from peer.lab.localswarm.plan import SwarmPlan
from peer.lab.localswarm.processes import Daemon
from peer.lab.localswarm.run import Say, Swarm
from peer.lab.run_sources import BaseManifest, RunSources, find_sources, overridden_values, write_beside
from peer.node.new_run import make_run
from peer.protocol.policy.amendments import Change
from peer.run.admission.invitation import Invitation
from peer.run.files.artifact_folder import folder_of, needed_artifacts
from peer.run.manifest import derive, load_signed, parse_manifest, sign_text
from peer.run.statements.files import beside, load, write_statements
from peer.run.statements.kinds import AMENDMENT
from peer.run.statements.log import StatementLog
from tests.support.made_home import KEY, shards
from tests.support.sandbox_here import open_here

GPT2 = {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 400, "n_positions": 32}
STEPS = ("sync.clock=steps", "sync.sync_every=5", "train.total_rounds=8", "context=32", "seed=3")
QUIET: Say = lambda line: None  # noqa: E731 - a parameter's value


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    open_here(monkeypatch)


def own(folder: Path, data: Path, *settings: str, weights: bool = False) -> BaseManifest:
    """Make a manifest of a foreign model on token shards. `weights`: it begins from given weights."""
    config = folder / "config.json"
    config.write_text(json.dumps(GPT2))
    if weights:
        from transformers import GPT2Config, GPT2LMHeadModel

        GPT2LMHeadModel(GPT2Config(**GPT2)).save_pretrained(folder / "weights")  # type: ignore[no-untyped-call]
        config = folder / "weights"
    path = folder / "own.toml"
    make_run(path, KEY, [*STEPS, *settings], QUIET, model=config, data=data)
    return BaseManifest(path.read_text(), path)


def laid(base: BaseManifest, text: str, sources: RunSources, folder: Path) -> Path:
    """Write the manifest that a tool derives, signed by another key, with its files beside it. Return its path."""
    operator, path = Identity.generate(), folder / "played" / "run.toml"
    path.parent.mkdir()
    write_beside(sources, sign_text(text, operator, path), path, operator)
    return path


@pytest.mark.parametrize("weights", [False, True], ids=["from the seed", "pretrained"])
def test_a_bootstrap_node_can_serve_what_a_tool_derives(tmp_path: Path, data: Path, weights: bool) -> None:
    base = own(tmp_path, data, weights=weights)
    text = derive(base.text, ["seed=7"])
    manifest = parse_manifest(text.encode())
    played = laid(base, text, find_sources(base, manifest, data), tmp_path)
    signed = load_signed(played)
    files, served = operator_files(played, signed.manifest, data, QUIET)
    assert files.tensors
    assert {ref.digest for ref in needed_artifacts(manifest).values()} <= served.keys()
    assert bool(manifest.init) == weights
    assert not manifest.init or manifest.init in served


def lose_artifact(name: str) -> Callable[[BaseManifest, Path], Path | None]:
    def lose(base: BaseManifest, data: Path) -> Path:
        manifest = parse_manifest(base.text.encode())
        digest = manifest.init if name == "init" else needed_artifacts(manifest)[name].digest
        assert base.path is not None
        (folder_of(base.path) / digest).unlink()
        return data

    return lose


def damage_config(base: BaseManifest, data: Path) -> Path:
    assert base.path is not None
    (folder_of(base.path) / needed_artifacts(parse_manifest(base.text.encode()))["config"].digest).write_bytes(b"{}")
    return data


def lose_shard(base: BaseManifest, data: Path) -> Path:
    assert base.path is not None
    copy = base.path.parent / "copy"
    shutil.copytree(data, copy)
    (copy / "holdout-00000.tokens").unlink()
    return copy


def no_folder(base: BaseManifest, data: Path) -> None:
    return None


MISSING = {
    **{name: (lose_artifact(name), ManifestError) for name in ("tokenizer", "index", "config", "layout", "init")},
    "a damaged file": (damage_config, ManifestError),
    "a shard": (lose_shard, DataError),
    "the folder": (no_folder, DataError),
}


@pytest.mark.parametrize("what", MISSING)
def test_what_is_missing_is_told_before_anything_starts(what: str, tmp_path: Path, data: Path) -> None:
    lose, error = MISSING[what]
    base = own(tmp_path, data, weights=what == "init")
    given = lose(base, data)
    with pytest.raises(error) as refused:
        find_sources(base, parse_manifest(base.text.encode()), given)
    assert refused.value.fix
    arguments = ["swarm", "--manifest", str(base.path), *(("--data", str(given)) if given else ())]
    for words in (arguments, ["compare", str(base.path), *arguments[3:]]):
        done = CliRunner().invoke(peer, words)
        assert isinstance(done.exception, PeerError), done.output
        assert str(done.exception) == str(refused.value)


class StandIn:
    """Stands in for `Swarm` and starts nothing."""

    plans: ClassVar[list[SwarmPlan]] = []

    def __init__(self, plan: SwarmPlan, say: Say) -> None:
        self.plans.append(plan)

    async def run(self) -> dict[str, Any]:
        raise UsageError("enough")


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[SwarmPlan]:
    monkeypatch.setattr(StandIn, "plans", [])
    for module in (swarm_module, play):
        monkeypatch.setattr(module, "Swarm", StandIn)
    return StandIn.plans


@pytest.mark.parametrize("command", ["swarm", "compare"])
def test_a_manifest_keeps_its_numbers_and_overrides_are_told(
    command: str, plans: list[SwarmPlan], tmp_path: Path, data: Path
) -> None:
    base = own(tmp_path, data, "start=1700000000", "train.eval_every=1", "admission.kind=invited")
    named = ("--manifest", str(base.path)) if command == "swarm" else (str(base.path),)
    done = CliRunner().invoke(peer, [command, *named, "--data", str(data), "--peers", "2"])
    assert str(done.exception) == "enough", done.output
    (plan,) = plans
    assert plan.seed == 3
    assert plan.sources.shards == data
    assert overridden_values(base, plan.manifest) == ["start = 0 (was 1700000000)"]
    assert "start = 0 (was 1700000000)" in done.output


def test_options_override_and_are_told(plans: list[SwarmPlan], tmp_path: Path, data: Path) -> None:
    base = own(tmp_path, data)
    arguments = ("--rounds", "2", "--seed", "9", "--set", "sync.preset=diloco", "--peers", "2")
    CliRunner().invoke(peer, ["swarm", "--manifest", str(base.path), "--data", str(data), *arguments])
    changed = overridden_values(base, plans[0].manifest)
    assert {"seed = 9 (was 3)", "train.total_rounds = 2 (was 8)", "sync.preset = diloco (was gossip)"} <= set(changed)
    assert "sync.founders = 2 (was the preset's)" in changed
    assert len(changed) == 4


def test_amendments_are_signed_again_for_the_tools_run(tmp_path: Path, data: Path) -> None:
    """Amendments that refer to a state of the real run are left out."""
    base = own(tmp_path, data)
    assert base.path is not None
    log = StatementLog(load_signed(base.path).run_id, KEY.peer_id)
    log.amend(KEY, 2, Change.LR_SCALE, "plateau", value=0.5)
    log.amend(KEY, 3, Change.REFOUND, "spoilt", digest="ab" * 32)
    write_statements(beside(base.path, AMENDMENT), log.chain)
    sources = find_sources(base, parse_manifest(base.text.encode()), data)
    assert sources.left_out == ("amendment 2 of own.amendments: its state is of the real run",)
    played = laid(base, base.text, sources, tmp_path)
    signed = load_signed(played)
    again = StatementLog(signed.run_id, signed.manifest.operator)
    load(beside(played, AMENDMENT), again)
    (amendment,) = again.amendments
    assert (amendment.round, amendment.change, amendment.value, amendment.reason) == (
        2,
        Change.LR_SCALE,
        0.5,
        "plateau",
    )


def test_peers_of_a_run_by_invitation_are_invited(tmp_path: Path, data: Path) -> None:
    base = own(tmp_path, data, "admission.kind=invited")
    manifest = parse_manifest(base.text.encode())
    sources = find_sources(base, manifest, data)
    plan = SwarmPlan(peers=2, manifest=base.text, sources=sources, home=tmp_path / "swarm", seed=3)
    swarm = Swarm(plan, QUIET)
    swarm._write_manifest()
    daemon = Daemon("peer 1", plan.home / "peer-1")
    option, file = swarm._invitation_options(daemon)
    assert option == "--invitation"
    signed = load_signed(plan.home / "run.toml")
    invitation = Invitation.named(file)
    assert invitation.peer == load_or_create(daemon.home / "identity.key").peer_id
    assert invitation.refusal(signed.run_id, [signed.manifest.operator], invitation.peer, time.time()) is None


def test_one_folder_of_shards_is_for_all(tmp_path: Path, data: Path) -> None:
    base = own(tmp_path, data)
    for given in (f"2@{data}", str(data)), (f"2@{data}",):
        words = [word for folder in given for word in ("--data", folder)]
        done = CliRunner().invoke(peer, ["swarm", "--manifest", str(base.path), *words])
        assert isinstance(done.exception, UsageError), done.output
