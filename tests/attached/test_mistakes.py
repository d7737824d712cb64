"""Mistakes in a user's loop: each raises an error with a fix, at the place of the mistake."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import peer
from peer.attached import swarm as attached
from peer.errors import HomeBusy, HomeUnusable, JoinDeclined, ModelError, PeerError, RunEnded, TicketError, UsageError
from peer.identity import Identity
from peer.node.control import ControlServer
from peer.run.home import Home
from peer.run.ticket import Ticket
from tests.attached.test_callbacks import TICKET, PlayedRun, llama, run
from tests.attached.test_loop import DEADLINE_S, PlayedDaemon

__all__ = ["run"]

Mistake = Callable[[PlayedRun, Path], Any]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def join(folder: Path, model: nn.Module, *optimizer: Any, **given: Any) -> peer.Swarm:
    return peer.join(TICKET, model, optimizer[0] if optimizer else adamw(model), home=folder / "home", **given)


@contextlib.contextmanager
def joined(run: PlayedRun, folder: Path, model: nn.Module | None = None) -> Iterator[tuple[peer.Swarm, nn.Module, Any]]:
    """Yield a joined swarm whose run does not end by itself, its model and its optimizer."""
    run.script = run.play_until_left
    model = model or llama()
    optimizer = adamw(model)
    with join(folder, model, optimizer) as swarm:
        yield swarm, model, optimizer


def refused_with(error: str, found: str) -> Callable[[PlayedDaemon], None]:
    """Return a script for a daemon that ends with an error."""

    def script(daemon: PlayedDaemon) -> None:
        daemon.post({"op": "failed", "error": error, "found": found, "fix": "Do this.", "why": ""})

    return script


def repeat(step: Callable[[], Any]) -> None:
    for _ in range(100):
        step()


def unreachable_ticket() -> str:
    return Ticket(b"R" * 32, (f"/ip4/192.0.2.1/tcp/1/p2p/{Identity.generate().peer_id}",)).encode()


def until_refused(daemon: PlayedDaemon) -> None:
    """Script of a daemon whose loop has another model than the run."""
    daemon.open()
    daemon.refused = json.loads(daemon._file.readline())


# -- at join ---------------------------------------------------------------------------------------------------------


def other_layers(run: PlayedRun, folder: Path) -> None:
    join(folder, nn.Sequential(nn.Linear(2, 2)))


def other_shape(run: PlayedRun, folder: Path) -> None:
    model = llama()
    model.model.norm.weight = nn.Parameter(torch.ones(9))  # type: ignore[union-attr]
    join(folder, model)


def one_parameter_more(run: PlayedRun, folder: Path) -> None:
    model = llama()
    model.head = nn.Linear(8, 2)
    join(folder, model)


def half_precision(run: PlayedRun, folder: Path) -> None:
    join(folder, llama().bfloat16())


def without_values(run: PlayedRun, folder: Path) -> None:
    join(folder, llama().to("meta"))


def optimizer_of_another_model(run: PlayedRun, folder: Path) -> None:
    join(folder, llama(), adamw(llama()))


def parameters_for_an_optimizer(run: PlayedRun, folder: Path) -> None:
    join(folder, llama(), list(llama().parameters()))


def no_tokens_a_step(run: PlayedRun, folder: Path) -> None:
    join(folder, llama(), tokens_per_step=0)


def a_holdout_without_a_loss(run: PlayedRun, folder: Path) -> None:
    join(folder, llama(), holdout=[torch.zeros(1, 8)])


def a_home_that_is_a_file(run: PlayedRun, folder: Path) -> None:
    (folder / "home").write_text("")
    join(folder, llama())


def a_run_that_is_over(run: PlayedRun, folder: Path) -> None:
    run.script = refused_with("RunEnded", "the run tiny is over")
    join(folder, llama())


def nobody_who_agrees(run: PlayedRun, folder: Path) -> None:
    run.script = refused_with("JoinDeclined", "nobody was there to agree to the run tiny")
    join(folder, llama())


def joined_twice(run: PlayedRun, folder: Path) -> None:
    with joined(run, folder) as (_, model, _):
        join(folder / "elsewhere", model)


def a_second_model_in_one_home(run: PlayedRun, folder: Path) -> None:
    with joined(run, folder):
        join(folder, llama())


# -- in the loop -----------------------------------------------------------------------------------------------------


def a_step_in_a_thread(run: PlayedRun, folder: Path) -> None:
    with joined(run, folder) as (_, _, optimizer):
        raised = list[BaseException]()

        def elsewhere() -> None:
            try:
                optimizer.step()
            except UsageError as error:
                raised.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(DEADLINE_S)
        raise raised[0]


def a_model_cast_later(run: PlayedRun, folder: Path) -> None:
    with joined(run, folder) as (_, model, optimizer):
        model.bfloat16()
        optimizer.step()


def a_parameter_replaced_later(run: PlayedRun, folder: Path) -> None:
    with joined(run, folder) as (_, model, optimizer):
        model.model.norm.weight = nn.Parameter(torch.ones(8))  # type: ignore[union-attr]
        optimizer.step()


def a_generator_as_loader(run: PlayedRun, folder: Path) -> None:
    with joined(run, folder) as (swarm, _, optimizer):
        for _ in swarm.until_end(torch.zeros(1, 8, dtype=torch.long) for _ in range(3)):
            optimizer.step()


def a_loader_without_batches(run: PlayedRun, folder: Path) -> None:
    with joined(run, folder) as (swarm, _, _):
        next(swarm.until_end([]))


def a_loss_for_each_token(run: PlayedRun, folder: Path) -> None:
    with joined(run, folder) as (swarm, _, _):
        swarm.log(loss=torch.ones(3))


def the_state_of_another_home(run: PlayedRun, folder: Path) -> None:
    with joined(run, folder) as (swarm, _, _):
        swarm.load_state_dict({"tokens": 10**9, "round": 3, "step_in_round": 0})


MISTAKES: list[tuple[Mistake, type[PeerError], str, str]] = [
    (other_layers, ModelError, "is not in your model", "peer manifest show"),
    (other_shape, ModelError, r"model.norm.weight is \[9\] in your model and \[8\] in the run", "peer manifest show"),
    (one_parameter_more, ModelError, r"head.weight \[2, 8\] of your model is not in the run", "requires_grad=False"),
    (half_precision, ModelError, "torch.bfloat16 in your model and torch.float32 in the run", "torch.autocast"),
    (without_values, ModelError, "on the meta device", "to_empty"),
    (optimizer_of_another_model, UsageError, "updates none of the model's parameters", "Make the optimizer of the"),
    (parameters_for_an_optimizer, UsageError, "not Parameter", "swarm.step"),
    (no_tokens_a_step, UsageError, "tokens_per_step is 0", "one step trains on"),
    (a_holdout_without_a_loss, UsageError, "without a loss", "loss"),
    (a_home_that_is_a_file, HomeUnusable, "home", "--home"),
    (a_run_that_is_over, RunEnded, "the run tiny is over", "Do this."),
    (nobody_who_agrees, JoinDeclined, "nobody was there", "Do this."),
    (joined_twice, UsageError, "this model has joined a run already", "swarm.leave()"),
    (a_second_model_in_one_home, UsageError, "takes part in a run with the home", "home="),
    (a_step_in_a_thread, UsageError, "on another thread than join", "on the thread that trains"),
    (a_model_cast_later, ModelError, "torch.bfloat16 in your model", "torch.autocast"),
    (a_parameter_replaced_later, UsageError, "model.norm.weight is another tensor", "in place"),
    (a_generator_as_loader, UsageError, "no batches, or was exhausted", "no generator"),
    (a_loader_without_batches, UsageError, "no batches", "DataLoader"),
    (a_loss_for_each_token, UsageError, "no number", "one element"),
    (the_state_of_another_home, UsageError, "the state is of 1,000,000,000 tokens", "the home that the state"),
]


@pytest.mark.parametrize(("mistake", "kind", "found", "fix"), MISTAKES, ids=[row[0].__name__ for row in MISTAKES])
def test_a_mistake_is_an_error_with_a_fix(
    tmp_path: Path, run: PlayedRun, mistake: Mistake, kind: type[PeerError], found: str, fix: str
) -> None:
    run.script = until_refused
    before = set(attached._homes)
    with pytest.raises(kind, match=found) as raised:
        mistake(run, tmp_path)
    assert fix in raised.value.fix
    assert attached._homes == before, "what was refused, or left, can be joined again"


@pytest.mark.parametrize("ticket", ["", "no ticket", "@missing.txt"])
def test_what_is_no_ticket_is_refused_before_a_daemon_starts(tmp_path: Path, ticket: str) -> None:
    with pytest.raises((TicketError, UsageError)) as raised:
        peer.join(ticket, llama(), None, home=tmp_path)
    assert raised.value.fix


@pytest.mark.parametrize("raised", [ValueError("of the loop"), KeyboardInterrupt()], ids=["exception", "ctrl-c"])
def test_what_ends_the_loop_is_raised_as_it_is_and_the_run_is_left(
    tmp_path: Path, run: PlayedRun, raised: BaseException
) -> None:
    with pytest.raises(type(raised)) as found, joined(run, tmp_path) as (swarm, _, _):
        raise raised
    assert found.value is raised
    assert swarm.over
    assert run.daemons[0].left.is_set()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Install Python's handler: a shell starts its background jobs with SIGINT ignored."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_in_a_step_that_waits_leaves_the_run(tmp_path: Path, run: PlayedRun) -> None:
    def script(daemon: PlayedDaemon) -> None:
        daemon.open()
        daemon.start(0)
        daemon.work(0)
        os.kill(os.getpid(), signal.SIGINT)  # the loop is held: its snapshot was taken, and no result has come
        assert daemon.left.wait(DEADLINE_S)
        daemon.post({"op": "over", "code": 0})

    run.script = script
    model = llama()
    optimizer = adamw(model)
    swarm = join(tmp_path, model, optimizer)
    with pytest.raises(KeyboardInterrupt), swarm:
        repeat(optimizer.step)
    assert swarm.over


def test_batches_without_a_step_are_noted(
    tmp_path: Path, run: PlayedRun, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached, "UNSTEPPED_BATCHES", 3)
    with joined(run, tmp_path) as (swarm, model, _):
        later = adamw(model)  # the user replaced the optimizer, for another learning rate
        for _, _ in zip(range(7), swarm.until_end([torch.zeros(1, 8, dtype=torch.long)]), strict=False):
            later.step()
    assert [record.message for record in caplog.records].count(f"3 batches without a step: {attached.NO_STEPS}") == 1


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_step_in_a_forked_worker_is_refused(tmp_path: Path, run: PlayedRun) -> None:
    with joined(run, tmp_path) as (_, _, optimizer):
        run.daemons[0].forked = True  # simulates a fork, which is unsafe in a test process with threads
        with pytest.raises(UsageError, match="was forked from the one that joined") as raised:
            optimizer.step()
        assert "process that trains" in raised.value.fix
        run.daemons[0].forked = False
        optimizer.step()


UNGUARDED = """
import multiprocessing, sys
import peer, torch
class Model(torch.nn.Linear):
    pass
if multiprocessing.current_process().name != "MainProcess":
    peer.join(sys.argv[1], Model(2, 2), None, home=sys.argv[2])
elif __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=print)
    worker.start()
    worker.join()
    sys.exit(worker.exitcode)
"""


@pytest.mark.processes
def test_a_script_that_a_worker_imports_does_not_join_again(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(UNGUARDED)
    command = [sys.executable, "script.py", unreachable_ticket(), str(tmp_path / "home")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode != 0
    assert "a worker process imports this script" in done.stderr
    assert not (tmp_path / "home").exists()


async def hold(home: Home, begun: threading.Event, enough: threading.Event) -> None:
    """Hold the lock of a home, as a daemon that trains does."""

    async def answer(command: str, arguments: Any) -> dict[str, Any]:
        return {"leaving": None}

    with home.lock():
        server = ControlServer(home.control_socket, answer)
        await server.start()
        begun.set()
        await asyncio.to_thread(enough.wait, DEADLINE_S)
        await server.close()


@pytest.mark.processes
def test_a_home_in_use_is_refused_by_the_daemon(tmp_path: Path) -> None:
    """If two programs use one home, the daemon of the second finds the lock of the first."""
    begun, enough = threading.Event(), threading.Event()
    holder = threading.Thread(target=lambda: asyncio.run(hold(Home(tmp_path), begun, enough)))
    holder.start()
    try:
        assert begun.wait(DEADLINE_S)
        with pytest.raises(HomeBusy, match=f"in use by process {os.getpid()}") as raised:
            peer.join(unreachable_ticket(), llama(), None, home=tmp_path)
    finally:
        enough.set()
        holder.join()
    assert "peer leave" in raised.value.fix
