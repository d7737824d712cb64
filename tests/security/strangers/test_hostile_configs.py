"""Model configs of an operator that create large tensors without parameters are rejected, by name, wherever a model is
created."""

from __future__ import annotations

import json
import resource
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from peer.aio.threads import inline
from peer.errors import MachineTooSmall, ModelError
from peer.result import network
from peer.result.model import SourceRequest
from peer.result.remote import judge as judge_module
from peer.result.remote.judge import HoldOutJudge
from peer.result.source import load_model
from peer.run.manifest import parse_manifest
from peer.run.memory import memory_need
from peer.run.sections import MOST_BUFFER_BYTES, LlamaSection
from peer.trainer import worker
from peer.trainer.arena import Arena
from peer.trainer.config import TrainerConfig
from peer.trainer.data.tracked import TrackedData
from peer.trainer.inner_loop import InnerLoop
from peer.trainer.memory_limit import MARGIN, OTHER_THREADS, MemoryLimit, limited_memory
from peer.trainer.models import builder
from peer.trainer.models.factory import empty_model, layout_of
from peer.trainer.models.foreign import ForeignModel
from peer.trainer.sandbox import inspect_config
from tests.run.test_sections_of_artifacts import FOREIGN
from tests.support.made_home import MadeHome, command, made_home
from tests.support.sandbox_here import open_here

REF = {"digest": "ab" * 32, "size": 700}
NEO = {
    "model_type": "gpt_neo",
    "hidden_size": 2,
    "num_layers": 2,
    "num_heads": 1,
    "vocab_size": 96,
    "attention_types": [[["global"], 2]],
}
LARGE = NEO | {"max_position_embeddings": 46341}
"""A square mask of 2 GiB in each layer, of 93 thousand parameters."""
USUAL = NEO | {"max_position_embeddings": 2048}
WORDS = r"makes 4\.29 GB of buffers beside its parameters, at most 268\.4 MB are taken\. The largest is .*\.bias: "


def written(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("context", [0, 8])
def test_masks_by_formula_are_refused_in_the_sandbox(
    context: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`context` 8: the model is inspected for training. 0: for evaluation or export."""
    open_here(monkeypatch)
    with pytest.raises(ModelError, match=WORDS) as caught:
        inspect_config(written(tmp_path, LARGE), 10**6, context=context)
    assert "max_position_embeddings" in caught.value.fix
    assert inspect_config(written(tmp_path, USUAL), 10**6, context=context).max_positions == 2048


def test_what_makes_the_model_refuses_it_too(tmp_path: Path) -> None:
    """The trainer, `eval` and `generate` create the model with the first of these functions. `export` uses the second,
    which the first one calls."""
    config = {
        "model": {"kind": "transformers", "parameters": 1, "config": REF, "layout": REF},
        "sync_every": 1,
        "seed": 1,
    }
    given = TrainerConfig.model_validate(config | {"peer_id": "", "config_file": str(written(tmp_path, LARGE))})
    with pytest.raises(ModelError, match=WORDS):
        empty_model(given)
    with pytest.raises(ModelError, match=WORDS):
        builder.build_shell(builder.config_of(tmp_path / "config.json"))
    written(tmp_path, USUAL)
    assert sum(buffer.nbytes for buffer in empty_model(given).buffers()) >= 2 * 2048**2


def test_what_no_count_sees_meets_the_limit_of_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = builder.config_of(written(tmp_path, USUAL))
    monkeypatch.setattr(builder, "check_buffer_bytes", lambda model: None)
    monkeypatch.setattr(builder, "SHELL_BYTES", 2**21)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    large = builder.config_of(written(tmp_path, LARGE))
    with pytest.raises(ModelError, match=r"making GPTNeo\w+ of the run's config takes more memory than"):
        builder.build_shell(large)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    monkeypatch.undo()
    builder.build_shell(config)


SMALL = MemoryLimit(2**20, "so much")


def test_a_limit_ends_with_its_block_and_hides_no_other_error() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(ModelError, match="making it takes more memory than the 1"), limited_memory(SMALL, "making it"):
        torch.ones(2**28)
    with pytest.raises(RuntimeError, match="size of tensor"), limited_memory(SMALL, "making it"):
        torch.ones(2) + torch.ones(3)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_the_need_of_a_run_counts_the_buffers_that_a_config_may_make() -> None:
    manifest = parse_manifest(FOREIGN.encode())
    base = (
        memory_need(manifest, micro_batch=0).trainer - memory_need(manifest, micro_batch=0, trains_here=False).trainer
    )
    assert base == 16 * manifest.model.parameters + MOST_BUFFER_BYTES


@pytest.mark.parametrize("layers", [0, -1, [2], None])
def test_a_number_of_layers_that_is_none_divides_nothing(layers: Any) -> None:
    made: Any = builder.build(builder.CONFIG_MAPPING["gpt_neo"](**USUAL))
    made.config = SimpleNamespace(num_hidden_layers=layers)
    assert ForeignModel(made).layers == 1


# -- what a forward pass takes -----------------------------------------------------------------------------------------

CONTEXT, FREE = 2048, 2**30
HEADS = NEO | {"hidden_size": 128, "num_heads": 128, "vocab_size": 256, "max_position_embeddings": CONTEXT}
"""As many heads as a hidden state has places: the attention of one window takes 2.1 GB a tensor."""
TINY = LlamaSection(
    hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1
)


class Ended(Exception):
    """There are no further commands."""


class Line:
    """The daemon's end of a trainer: sends these commands, then closes."""

    def __init__(self, *commands: dict[str, Any]) -> None:
        self.inbox, self.given_up = self, 0
        self._commands = deque(commands)
        self.said: list[dict[str, Any]] = []

    def empty(self) -> bool:
        """Delay each command until the previous one is done."""
        return True

    def get(self, timeout: float | None = None) -> dict[str, Any]:
        if not self._commands:
            raise Ended
        return self._commands.popleft()

    def send(self, message: dict[str, Any]) -> None:
        self.said.append(message)


START = {"id": 1, "op": "start", "round": 0, "resume": None}
WORK = {"id": 2, "op": "work", "round": 0, "fragment": 0, "steps": 2, "until": None, "hold": True}
WORK |= {"lr_scale": 1.0, "pause_after": None}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"the quick brown fox jumps over the lazy dog. " * 2**12)
    return folder


def served(texts: Path, *commands: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Run a trainer with these commands in this process. Return the message with which it ends."""
    given = {
        "model": TINY,
        "data": {"kind": "text"},
        "data_dir": str(texts),
        "train": {"context": CONTEXT, "batch": 1, "total_rounds": 10, "eval_windows": 1},
        "sync_every": 10,
        "seed": 1,
        "peer_id": "a",
        "device": "cpu",
        "activation_bytes": FREE,
        "threads": torch.get_num_threads(),
    }
    config = TrainerConfig.model_validate(given | changes)
    layout, folder = layout_of(config), texts.parent / "run"
    folder.mkdir()
    Arena(folder, layout, create=True)
    opening = {
        "config": config.model_dump(mode="json"),
        "tensors": [tensor.name for tensor in layout.tensors],
        "shapes": [tensor.shape for tensor in layout.tensors],
        "fragments": layout.fragments,
        "folder": str(folder),
    }
    line = Line(*commands)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises((SystemExit, ModelError, MachineTooSmall, Ended)):
        worker.serve(line, opening)  # type: ignore[arg-type]
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    return line.said[-1]


def hostile(folder: Path) -> dict[str, Any]:
    """Return the trainer's configuration for `HEADS`, of a run in which it was classified as a small model."""
    model = {"kind": "transformers", "parameters": 690_000, "config": REF, "layout": REF}
    return {"model": model, "config_file": str(written(folder, HEADS))}


def test_a_forward_pass_that_takes_too_much_ends_the_trainer_with_an_error_that_names_it(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_here(monkeypatch)
    given = hostile(tmp_path)
    inspect_config(Path(given["config_file"]), 10**6, context=CONTEXT)
    said = served(texts, **given)
    assert said["refused"] == "ModelError"
    assert "training the run's model takes more memory than the 1.6" in said["found"]
    assert "that it may take here: all that is free for it" in said["found"]
    assert "only the operator can change that" in said["fix"]


def test_with_a_micro_batch_of_the_volunteers_own_the_first_step_ends_it_too(texts: Path, tmp_path: Path) -> None:
    """With a fixed micro batch, no trial step precedes the first step."""
    said = served(texts, START, WORK, micro_batch=1, **hostile(tmp_path))
    assert said["refused"] == "ModelError"
    assert "training the run's model with --micro-batch 1 takes more memory than the" in said["found"]


def test_once_a_step_was_made_another_process_may_try_again(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InnerLoop, "evaluate", lambda *given: torch.empty(2**31))
    said = served(texts, START, WORK, {"id": 3, "op": "evaluate"})
    assert said.keys() == {"dying"}
    assert said["dying"].startswith("training the run's model takes more memory than the")


def test_the_owners_own_texts_are_not_counted(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class LargeDesk(TrackedData):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.texts = torch.empty(3 * 2**30, dtype=torch.uint8)
            """More than the limit. Nobody touches it."""

    monkeypatch.setattr(worker, "TrackedData", LargeDesk)
    train = {"context": 16, "batch": 2, "total_rounds": 10, "eval_windows": 1}
    said = served(texts, START, WORK, {"id": 3, "op": "evaluate"}, train=train)
    assert said == {"dying": "Ended: "}, "all commands were carried out"


@pytest.fixture
def bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MadeHome]:
    """Create a home whose run has the config `HEADS`, on a machine with little free memory."""
    open_here(monkeypatch)
    config = written(tmp_path, HEADS)
    home = made_home(tmp_path, f"context={CONTEXT}", "eval_windows=1", model=config)
    home.save(home.first())
    monkeypatch.setattr(network, "free_bytes", lambda: FREE + FREE // 2)
    return home


def test_eval_export_and_generate_end_with_an_error_that_names_it(bomb: MadeHome, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    words = "the run's model takes more memory than the 1.61 GB that it may take here"
    assert f"evaluating {words}" in command("eval", bomb.path, "--device", "cpu", code=23)
    assert f"evaluating {words}" in command("export", bomb.path, tmp_path / "out", "--device", "cpu", code=23)
    assert not (tmp_path / "out").exists()
    prompt = "x" * CONTEXT
    assert f"generating with {words}" in command("generate", bomb.path, "--prompt", prompt, "--device", "cpu", code=23)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    command("export", bomb.path, tmp_path / "out", "--no-eval")


def test_the_judge_of_donors_states_ends_with_it_too(
    bomb: MadeHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model([str(bomb.path)], SourceRequest(scratch=tmp_path), lambda line: None)
    monkeypatch.setattr(judge_module, "window_losses", lambda *given: torch.empty(2**31))
    judge = HoldOutJudge(model.run, torch.device("cpu"), tmp_path, inline)
    with pytest.raises(ModelError, match="evaluating the run's model takes more memory than"):
        judge._weigh(model.params, seed=1)


@pytest.mark.parametrize(
    ("need", "activations", "free", "nbytes", "error"),
    [
        (100, 50, MARGIN + 250, MARGIN + 250, ModelError),
        (100, 50, MARGIN + 249, MARGIN + 249, ModelError),
        (MARGIN, 50, 2 * MARGIN - 1, 2 * MARGIN - 1, MachineTooSmall),
        (MARGIN, 0, MARGIN, MARGIN + 2**30, MachineTooSmall),
    ],
)
def test_a_limit_is_twice_the_need_and_a_margin_or_what_is_free(
    need: int, activations: int, free: int, nbytes: int, error: type[Exception]
) -> None:
    """An error blames the config only if an honest one would have had twice what it needs."""
    limit = MemoryLimit.of(need, activations, free)
    assert limit.nbytes == nbytes
    assert type(limit.error("it")) is error
    assert "by estimate" in limit.reason


def test_stacks_of_threads_are_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks of threads are added to the limit, because they count when a thread starts, and `ulimit -s` may make them
    large."""
    threads = torch.get_num_threads() + OTHER_THREADS

    def limit(stack: int) -> int:
        real = resource.getrlimit
        with monkeypatch.context() as patch:
            patch.setattr(resource, "getrlimit", lambda of: (stack, stack) if of == resource.RLIMIT_STACK else real(of))
            with limited_memory(MemoryLimit(2**30, "so much"), "it"):
                return real(resource.RLIMIT_DATA)[0]

    assert limit(2**30) - limit(2**20) == pytest.approx(threads * (2**30 - 2**20), abs=2**25)
    assert limit(resource.RLIM_INFINITY) == pytest.approx(limit(2**23), abs=2**25)
