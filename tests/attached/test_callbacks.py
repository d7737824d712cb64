"""The callbacks for the Trainers of transformers and Lightning. The test plays the daemon."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

import peer
from peer.attached import swarm as attached
from peer.errors import UsageError
from peer.hf import PeerCallback
from peer.trainer.arena import Arena, CounterFile
from peer.trainer.ipc import Message
from tests.attached.test_loop import LAYOUT, SECTION, STEPS, PlayedDaemon

# Lightning warns of workers, of a missing logger, and of what its own dependencies deprecate.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")

CONTEXT, BATCH, ROUNDS = 16, 2, 3
WINDOWS = 60
"""A whole number of steps of 1, 2 and 3 batches."""
TICKET = "peer1played"
ENDED = torch.full((LAYOUT.elements,), 0.25)
"""The outer params of the last round."""


def llama() -> nn.Module:
    """Return the run's model as transformers makes it."""
    config = AutoConfig.for_model("llama", **SECTION.model_dump(exclude={"kind"}), tie_word_embeddings=True)
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    assert isinstance(model, nn.Module)
    return model


class Windows(Dataset[dict[str, Tensor]]):
    """Windows of random tokens, each with itself as labels."""

    def __init__(self, number: int) -> None:
        self._tokens = torch.randint(0, 256, (number, CONTEXT))

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self._tokens[index], "labels": self._tokens[index]}


class PlayedRun:
    """A run of `ROUNDS` rounds for calls of `peer.join`, whose daemons are played by threads."""

    def __init__(self, folder: Path) -> None:
        CounterFile(folder, 1)
        self.arena = Arena(folder, LAYOUT, create=True)
        self.arena.inn.fill_(0.5)
        self.folder, self.works, self.daemons = folder, list[Message](), list[PlayedDaemon]()
        self.script: Callable[[PlayedDaemon], None] = self.play_all

    def start(self, arguments: list[str], home: Path, round_: int) -> PlayedDaemon:
        self.daemons.append(PlayedDaemon(self.folder, self.script))
        return self.daemons[-1]

    def play_all(self, daemon: PlayedDaemon) -> None:
        daemon.open()
        daemon.start(0)
        for round_ in range(ROUNDS):
            work = daemon.work(round_)
            self.works.append(work)
            self.arena.inn.copy_(ENDED)
            daemon.apply(round_, work["processed"])
        daemon.post({"op": "over", "code": 0})

    def play_until_left(self, daemon: PlayedDaemon) -> None:
        daemon.open()
        daemon.start(0)
        daemon.post({"id": 90, **daemon.order(0), "steps": 10**6})
        assert daemon.left.wait(60.0)
        daemon.post({"op": "over", "code": 0})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedRun:
    (tmp_path / "run").mkdir()
    played = PlayedRun(tmp_path / "run")
    monkeypatch.setattr(attached, "DaemonChild", played.start)
    monkeypatch.setattr(attached.Ticket, "named", lambda text: attached.Ticket)
    monkeypatch.setattr(attached.Ticket, "encode", lambda: TICKET)
    return played


def trainer(folder: Path, callback: PeerCallback, model: nn.Module | None = None, **settings: Any) -> Trainer:
    settings = {"max_steps": 10**6, "logging_steps": 1, "learning_rate": 1e-3, **settings}
    arguments = TrainingArguments(
        str(folder / "out"),
        per_device_train_batch_size=BATCH,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        **settings,
    )
    return Trainer(model or llama(), arguments, train_dataset=Windows(WINDOWS), callbacks=[callback])


def flat(model: nn.Module) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in model.parameters()])


@pytest.mark.parametrize("accumulated", [1, 3])
def test_the_trainer_takes_part_until_the_run_is_over(tmp_path: Path, run: PlayedRun, accumulated: int) -> None:
    callback = PeerCallback(TICKET, home=tmp_path)
    training = trainer(tmp_path, callback, gradient_accumulation_steps=accumulated)
    training.train()
    swarm = callback.swarm
    assert swarm is not None
    assert swarm.over
    tokens = STEPS * accumulated * BATCH * CONTEXT
    assert [(work["steps"], work["tokens"]) for work in run.works] == ROUNDS * [(STEPS, tokens)], (
        "optimizer steps count"
    )
    assert training.state.global_step == ROUNDS * STEPS
    assert torch.equal(flat(training.model), ENDED), "the run's params are the Trainer's model"
    assert "<svg" in swarm._repr_html_(), "the Trainer's losses are logged"


def test_the_trainer_may_end_first(tmp_path: Path, run: PlayedRun) -> None:
    run.script = run.play_until_left
    callback = PeerCallback(TICKET, home=tmp_path)
    trainer(tmp_path, callback, max_steps=3).train()
    assert run.daemons[0].left.is_set()
    assert callback.swarm is not None
    assert callback.swarm.tokens == 3 * BATCH * CONTEXT


class Broken(nn.Module):
    """Fails in its third forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = llama(), 0

    def forward(self, **batch: Tensor) -> Any:
        self.calls += 1
        if self.calls == 3:
            raise ZeroDivisionError
        return self.inner(**batch)

    def named_parameters(self, *given: Any, **more: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.inner.named_parameters(*given, **more)


def test_an_exception_in_training_drains_shortly_and_training_may_begin_again(tmp_path: Path, run: PlayedRun) -> None:
    run.script = run.play_until_left
    callback = PeerCallback(TICKET, home=tmp_path)
    training = trainer(tmp_path, callback, Broken(), max_steps=5)
    with pytest.raises(ZeroDivisionError):
        training.train()
    assert not run.daemons[0].left.is_set(), "callbacks are not called"
    training.train()
    assert [daemon.left.is_set() for daemon in run.daemons] == [True, True]
    broken = trainer(tmp_path, callback, Broken(), max_steps=5)
    with pytest.raises(ZeroDivisionError), callback:
        broken.train()
    assert run.daemons[2].left.is_set()


@pytest.mark.parametrize("followed", [False, True])
def test_whose_learning_rate_holds(tmp_path: Path, run: PlayedRun, followed: bool) -> None:
    callback = PeerCallback(TICKET, home=tmp_path, run_schedule=followed)
    training = trainer(tmp_path, callback, lr_scheduler_type="constant")
    training.train()
    swarm = callback.swarm
    assert swarm is not None
    expected = 1e-3 * swarm.lr_factor if followed else 1e-3
    assert training.optimizer.param_groups[0]["lr"] == pytest.approx(expected)
    assert swarm.lr_factor != 1.0
    assert training.state.log_history[-2]["learning_rate"] == pytest.approx(expected, rel=0.2), "the logs have it too"


def test_settings_that_cannot_be(tmp_path: Path, run: PlayedRun) -> None:
    with pytest.raises(TypeError, match="hoem"):
        PeerCallback(TICKET, hoem=tmp_path)
    callback = PeerCallback(TICKET, home=tmp_path, run_schedule=True)
    plateau = trainer(tmp_path, callback)
    plateau.create_optimizer()
    plateau.lr_scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(plateau.optimizer)
    with pytest.raises(UsageError, match="ReduceLROnPlateau"):
        plateau.train()
    best = trainer(tmp_path, PeerCallback(TICKET, home=tmp_path))
    best.args.load_best_model_at_end = True
    with pytest.raises(UsageError, match="load_best_model_at_end"):
        best.train()
    assert run.daemons == []


def test_what_ended_the_daemon_for_good_ends_training(tmp_path: Path, run: PlayedRun) -> None:
    def script(daemon: PlayedDaemon) -> None:
        daemon.open()
        daemon.start(0)
        run.works.append(daemon.work(0))
        daemon.post({"op": "failed", "error": "RunEnded", "found": "it was closed", "fix": "Find another.", "why": ""})

    run.script = script
    with pytest.raises(peer.errors.RunEnded, match="closed"), PeerCallback(TICKET, home=tmp_path) as callback:
        trainer(tmp_path, callback).train()


# -- Accelerate -------------------------------------------------------------------------------------------------------


def test_a_loop_of_accelerate_counts_the_steps_of_the_optimizer_inside(tmp_path: Path, run: PlayedRun) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    loader = DataLoader(Windows(WINDOWS), BATCH)
    model = llama()
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
    with peer.join(TICKET, model, optimizer, home=tmp_path) as swarm:
        for batch in swarm.until_end(loader):
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
    assert [(work["steps"], work["tokens"]) for work in run.works] == ROUNDS * [(STEPS, STEPS * 2 * BATCH * CONTEXT)]
    assert torch.equal(flat(model), ENDED)


# -- Lightning --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["lightning", "pytorch_lightning"])
def lightning(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """Yield a package of Lightning and `peer.lightning`, as in a program that imports only this package."""
    other = {"lightning", "pytorch_lightning"} - {request.param}
    package = importlib.import_module("lightning.pytorch" if request.param == "lightning" else request.param)
    for name in [*other, "peer.lightning"]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield package, importlib.import_module("peer.lightning")
    sys.modules.pop("peer.lightning", None)


def lightning_module(package: Any, fails_at: int = -1, scheduled: bool = False) -> Any:
    class Module(package.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = llama()

        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            if batch_idx == fails_at:
                raise ZeroDivisionError
            loss: Tensor = self.net(**batch).loss
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
            schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
            return ([optimizer], [schedule]) if scheduled else optimizer

    return Module()


def fit(package: Any, folder: Path, callback: Any, module: Any, **settings: Any) -> Any:
    settings = {"max_epochs": -1, "log_every_n_steps": 1, **settings}
    training = package.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[callback],
        **settings,
    )
    torch.manual_seed(0)
    training.fit(module, DataLoader(Windows(WINDOWS), BATCH))
    return training


@pytest.mark.parametrize("accumulated", [1, 2])
def test_lightning_takes_part_until_the_run_is_over(
    tmp_path: Path, run: PlayedRun, lightning: tuple[Any, Any], accumulated: int
) -> None:
    package, ours = lightning
    module = lightning_module(package)
    callback = ours.PeerCallback(TICKET, model=module.net, home=tmp_path)
    assert isinstance(callback, package.Callback)
    training = fit(package, tmp_path, callback, module, accumulate_grad_batches=accumulated)
    tokens = STEPS * accumulated * BATCH * CONTEXT
    assert [(work["steps"], work["tokens"]) for work in run.works] == ROUNDS * [(STEPS, tokens)]
    assert training.global_step == ROUNDS * STEPS
    assert torch.equal(flat(module), ENDED)
    assert "<svg" in callback.swarm._repr_html_()
    losses = [loss for _, loss in callback.swarm._losses]
    assert losses[0] == pytest.approx(5.545, abs=0.2), "not divided by the accumulated batches"


def test_lightning_drains_shortly_after_an_exception(
    tmp_path: Path, run: PlayedRun, lightning: tuple[Any, Any]
) -> None:
    package, ours = lightning
    run.script = run.play_until_left
    module = lightning_module(package, fails_at=3)
    with pytest.raises(ZeroDivisionError):
        fit(package, tmp_path, ours.PeerCallback(TICKET, model=module.net, home=tmp_path), module)
    assert run.daemons[0].left.is_set()


def test_lightning_follows_the_runs_schedule(tmp_path: Path, run: PlayedRun, lightning: tuple[Any, Any]) -> None:
    package, ours = lightning
    module = lightning_module(package, scheduled=True)
    with pytest.raises(UsageError, match="both set the learning rate"):
        fit(package, tmp_path, ours.PeerCallback(TICKET, model=module.net, home=tmp_path, run_schedule=True), module)
    module = lightning_module(package)
    callback = ours.PeerCallback(TICKET, model=module.net, home=tmp_path, run_schedule=True)
    training = fit(package, tmp_path, callback, module)
    rate = training.optimizers[0].param_groups[0]["lr"]
    assert rate == pytest.approx(1e-3 * callback.swarm.lr_factor)
    assert callback.swarm.lr_factor != 1.0


@pytest.mark.processes
@pytest.mark.parametrize(
    ("hidden", "module", "found"),
    [
        (["transformers"], "peer.hf", "transformers is not installed"),
        (["accelerate"], "peer.hf", "accelerate is not installed"),
        (["lightning", "pytorch_lightning"], "peer.lightning", "Lightning is not installed"),
    ],
)
def test_a_missing_library_is_named(hidden: list[str], module: str, found: str) -> None:
    code = f"""
import importlib.util
known = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in {hidden!r} else known(name, package)
from peer.errors import UsageError
try:
    import {module}
except UsageError as error:
    print(error.found, error.fix)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert found in done.stdout
    assert "pip install" in done.stdout
