"""The public interface of an attached loop: `peer.join`, the `Swarm` that it returns, and `peer.check`."""

from __future__ import annotations

import asyncio
import html
import logging
import math
import multiprocessing
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from peer.attached.daemon import DaemonChild
from peer.attached.follower import Follower
from peer.attached.loop import BROKEN_S, LEAVE_S, AttachedTrainer
from peer.attached.own_loss import Loss
from peer.attached.params import Named, innermost, match_tensors
from peer.attached.ranks import Ranks, check_ranks, meeting_place, own_rank
from peer.errors import ManifestError, PeerError, UsageError
from peer.node.control import send_command
from peer.observe.status.codec import from_json
from peer.observe.status.value import DaemonStatus
from peer.run.files.artifact_folder import artifact_files, read_tensors
from peer.run.home import Home, default_home
from peer.run.manifest import load_signed
from peer.run.model_layout import tensors_of
from peer.run.sections import LlamaSection
from peer.run.ticket import Ticket
from peer.user_folders import expand_user

log = logging.getLogger("peer")

Batch = TypeVar("Batch")
STATUS_S = 5.0
LOOK_S = 0.1
SHOWN_LOSSES = 400
"""Number of last losses that the curve in a notebook shows."""

UNSTEPPED_BATCHES = 1024
"""After this many batches without a step, a warning is logged: the loop probably steps another optimizer."""

NO_STEPS = (
    "nothing is exchanged. Call step() of the optimizer that was given to peer.join, or swarm.step() after each step "
    "of a loop without one"
)

_joined: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_homes: set[Path] = set()
"""Homes with which this process takes part in a run."""


@dataclass(frozen=True, kw_only=True)
class JoinOptions:
    """Options of the daemon that `join` starts. They correspond to the options of `peer join` with the same names.

    None stands for the default of `peer join`. Rates are in bytes per second."""

    agreed: bool = False
    """Agree to the run's terms without being asked (`--yes`). Otherwise the terminal or notebook asks once per run."""
    data: Path | str | None = None
    """Folder of texts for evaluations and probes, in a run with data of kind `text`. The loop does not need it."""
    initial_peers: tuple[str, ...] = ()
    """Addresses (multiaddrs) of nodes to connect to first, in addition to those in the ticket."""
    invitation: str | None = None
    """The invitation to a run that only admits invited peers, or `@FILE`."""
    identity_path: Path | str | None = None
    """File of this peer's key. None: `identity.key` in the home."""
    host_maddrs: tuple[str, ...] = ()
    """Addresses to listen at, as multiaddrs."""
    announce_maddrs: tuple[str, ...] = ()
    """Addresses to announce to other peers instead of `host_maddrs`, for example behind a forwarded port."""
    port: int | None = None
    """Port of the exchange service. None: any free port."""
    lan: bool | None = None
    """Whether to look for peers in the local network."""
    port_mapping: bool | None = None
    """Whether to ask the router to open a port."""
    max_upload: int | None = None
    """Most bytes to send per second."""
    max_download: int | None = None
    """Most bytes to receive per second."""
    daily_upload: int | None = None
    """Most bytes to send per day, in local time."""
    monthly_upload: int | None = None
    """Most bytes to send per calendar month."""
    checkpoint_every: float | None = None
    """Least seconds between two checkpoints."""
    keep_checkpoints: int | None = None
    """Number of checkpoints to retain."""
    wait: float | None = None
    """Most seconds to wait for the first answer from the run."""
    min_peers: int | None = None
    """Begin to train only when this many peers are ready."""
    log: tuple[str, ...] = ()
    """Trackers for the metrics and for the numbers of `Swarm.log`: `csv`, `tensorboard`, `trackio` or `wandb`. A colon
    and a place may follow if it is not the usual one."""
    summary: bool | None = None
    """Whether to send the operator's node a summary of this peer's work."""

    def arguments(self) -> list[str]:
        """Return the options as arguments of the `peer join` command."""
        given = list[str]()
        switches = {"lan": self.lan, "port-mapping": self.port_mapping, "summary": self.summary}
        for name, on in switches.items():
            given += [] if on is None else [f"--{name}" if on else f"--no-{name}"]
        for name in ("initial_peers", "host_maddrs", "announce_maddrs", "log"):
            for address in getattr(self, name):
                given += [f"--{name.replace('_', '-')}", address]
        for name in (
            *("data", "invitation", "identity_path", "port", "max_upload", "max_download", "daily_upload"),
            *("monthly_upload", "checkpoint_every", "keep_checkpoints", "wait", "min_peers"),
        ):
            if (value := getattr(self, name)) is not None:
                given += [f"--{name.replace('_', '-')}", str(value)]
        return [*given, "--yes"] if self.agreed else given


def join(
    ticket: str,
    model: Named,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None,
    *,
    loss: Loss | None = None,
    holdout: Iterable[Any] = (),
    tokens_per_step: int | None = None,
    home: Path | str | None = None,
    options: JoinOptions | None = None,
    on_error: Callable[[PeerError], None] | None = None,
) -> Swarm:
    """Take part in the run of a ticket with a training loop of your own.

    Fetches the run's state into the parameters of `model`. From then on, the parameters are exchanged with other peers
    inside `optimizer.step()`, between two steps. The network connections are made by a daemon, which is a process of
    its own. Use the result as a context manager.

    With several ranks of `torchrun` on one host (DistributedDataParallel or `fully_shard`), call it on all ranks with
    the same home. Rank 0 starts the daemon. All ranks meet at each step, and the methods of the swarm must be called on
    all ranks. `on_error` is called on rank 0.

    Args:
        ticket: The ticket, or `@FILE` to read it from a file. The manifest of its run defines everything that peers
            have to agree on.
        model: An `nn.Module`, or a mapping of names to fp32 tensors. Its trainable parameters must have the names and
            shapes of the run's, and be fp32. Their values are replaced.
        optimizer: The optimizer whose `step` ends an inner step. With a sequence, such as Muon and AdamW, it is the
            `step` of the last one. None: the loop calls `Swarm.step` itself.
        loss: `loss(model, batch)` returns the mean loss of a batch of the loop, in nats per token (for a classifier:
            per image), as a float or a tensor of one element. It is used in runs of a custom model: to judge the params
            of partners before they are merged, and for `Swarm.evaluate`. It is called between two steps, on this
            thread, with other values in the parameters of `model`, in evaluation mode, in fp32 and without gradients.
            Its batches are those that `Swarm.until_end` yields next, of which 8 are drawn ahead. Parameters, buffers,
            modes and random generators are restored afterwards. The loss of each candidate begins with the same torch
            seed. Other runs are evaluated with the run's own network. None: partners' params are only clipped.
        holdout: Batches for `loss` that the loop does not train on. They are held in memory. `Swarm.evaluate` returns
            their mean loss, and a state that a joiner fetches is judged by the first 8 of them before it is used.
        tokens_per_step: Tokens that each step trains on, on this rank. None: those of the batches from
            `Swarm.until_end`, or without such batches as many as the manifest's batch has.
        home: Folder of key, checkpoints and accounts. Joining again with the same ticket and home resumes the work.
            None: PEER_HOME, or else the default home.
        options: Further options of the daemon.
        on_error: Called with each fault of the daemon, on this thread, inside `optimizer.step()`. A fault never stops
            the loop, which then trains on alone.

    Returns when the first round begins.

    Raises:
        ModelError: A parameter's name, shape or type differs from the run's. The message names the first one.
        UsageError: The optimizer updates none of the parameters, the model has joined already, an argument is invalid,
            or this way of training with several ranks is not supported.
        RankLost: Another rank has ended or hangs. `optimizer.step()` raises it, too.
        JoinDeclined: The person did not agree to the run's terms.
        PeerError: Any other error of `peer join`, with its fix: for example, the run is over, or no peer answers."""
    known = Ticket.named(ticket)
    optimizers: list[Any] = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    for one in optimizers:
        if not isinstance(one, torch.optim.Optimizer | None):
            found = f"join() takes torch optimizers, not {type(one).__name__}"
            raise UsageError(found, "Give None, and call swarm.step(tokens=...) after each step.")
    optimizers = [innermost(one) for one in optimizers if one is not None]
    if tokens_per_step is not None and tokens_per_step < 1:
        raise UsageError(f"tokens_per_step is {tokens_per_step}", "Give the tokens that one step trains on.")
    kept = list(holdout)
    if kept and loss is None:
        raise UsageError("a hold-out was given without a loss", "Give join() the loss that is to be computed on it.")
    if isinstance(model, nn.Module) and model in _joined:
        raise UsageError("this model has joined a run already", "Leave the run first: swarm.leave().")
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # the test of multiprocessing itself
        found = "a worker process imports this script, and came to join() in it"
        raise UsageError(found, 'Put what the script does under: if __name__ == "__main__":')
    place = Home(expand_user(Path(home)) if home is not None else default_home()).path
    if place in _homes:
        fix = "Leave that run first: swarm.leave(). Or give this one a home of its own: join(..., home=...)."
        raise UsageError(f"this process takes part in a run with the home {place} already", fix)
    rank = own_rank()
    if rank is not None:
        check_ranks(model, optimizers, rank.world, has_loss=loss is not None)
        if rank.number > 0:
            follower = Follower(model, optimizers, rank, meeting_place(place))
            follower.join()
            return Swarm(follower, model, optimizers, tokens_per_step, place)
    given = (options or JoinOptions()).arguments()

    def start_daemon(round_: int) -> DaemonChild:
        return DaemonChild([known.encode(), "--home", str(place), "--plain", *given], place, round_)

    on_fault = on_error or (lambda fault: None)
    ranks = None if rank is None else Ranks(rank.world, meeting_place(place))
    trainer = AttachedTrainer(
        model,
        optimizers,
        start_daemon,
        confirm=_confirm,
        on_fault=on_fault,
        on_phase=_show_phase,
        loss=loss,
        holdout=kept,
        ranks=ranks,
    )
    trainer.join()
    return Swarm(trainer, model, optimizers, tokens_per_step, place)


def check(ticket_or_manifest: str | Path, model: Named, *, home: Path | str | None = None) -> None:
    """Check that a model fits a run, given by its manifest's file (.toml) or by the ticket of a run joined before.

    Uses no network. Raises ModelError, which names the first parameter that differs with both shapes and types, and
    ManifestError when this home does not have the manifest or the run's layout."""
    own = Home(expand_user(Path(home)) if home is not None else default_home(), make=False)
    if Path(ticket_or_manifest).suffix == ".toml":
        path = Path(ticket_or_manifest)
    else:
        path = own.run(Ticket.named(str(ticket_or_manifest)).run_id).manifest
        if not path.exists():
            fix = "Give the manifest's file, or join once: join() compares before it changes anything."
            raise ManifestError(f"this home has not joined the run yet: there is no {path}", fix)
    manifest = load_signed(path).manifest
    if isinstance(manifest.model, LlamaSection):
        match_tensors(model, tensors_of(manifest.model))
        return
    layout = manifest.model.layout.digest
    file = next(
        (one for one in (artifact_files(path).get(layout), own.artifacts / layout) if one and one.exists()), None
    )
    if file is None:
        raise ManifestError(f"the run's layout {layout} is not here", "Join once: join() fetches and compares it.")
    match_tensors(model, read_tensors(manifest, file))


class Swarm:
    """The participation of one training loop in a run. `join` makes it; it ends with its `with` block, or with `leave`.

    All methods must be called on the thread that called `join`."""

    def __init__(
        self,
        trainer: AttachedTrainer | Follower,
        model: Named,
        optimizers: Sequence[torch.optim.Optimizer],
        tokens_per_step: int | None,
        home: Path,
    ) -> None:
        self._trainer = trainer
        self._model = model
        self._tokens_per_step = tokens_per_step
        self._home = home
        self._seen = 0
        """Tokens since the last step, in the batches that `until_end` yielded and those passed to `count`."""
        self._unstepped = 0
        """Number of batches that `until_end` yielded since the last step."""
        self._loss = math.nan
        self._losses: list[tuple[int, float]] = []
        self._hook = None if not optimizers else optimizers[-1].register_step_post_hook(lambda *_: self.step())
        if isinstance(model, nn.Module):
            _joined.add(model)
        _homes.add(home)

    # -- the loop ----------------------------------------------------------------------------------------------------

    def until_end(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the loader's batches until the run is over. An exhausted loader is iterated again from its beginning.

        Raises UsageError for a loader without batches, and the PeerError that ended the daemon for good."""
        batches = _repeated(loader)
        for batch in self._trainer.upcoming.prefetch(batches) if self._trainer.judges_by_loss else batches:
            self._trainer.end_interrupted_wait()
            if self.over:
                return
            self._seen += _tokens_in(batch)
            self._unstepped += 1
            if self._unstepped == UNSTEPPED_BATCHES:
                log.warning("%d batches without a step: %s", UNSTEPPED_BATCHES, NO_STEPS)
            yield batch

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the run's own training data without end: (inputs, targets), each [batch, context] int64.

        The targets are the inputs shifted by one token. Pass the iterator to `until_end`; a loop may also train on
        other batches. Windows are drawn without replacement within an epoch, in a different order for each peer and
        each start. May wait while the daemon fetches a shard; exchanges that are due happen meanwhile, as inside a
        step.

        Raises UsageError with several ranks, in a run of a custom model, which has no data, and when the run's data are
        the volunteers' own texts and `JoinOptions.data` names none."""
        yield from self._trainer.batches()

    def count(self, batch: Any) -> None:
        """Count the tokens of a batch that `until_end` did not yield, for the present step. `batch`: the number of
        tokens, or the batch itself."""
        self._seen += batch if isinstance(batch, int) else _tokens_in(batch)

    def step(self, tokens: int | None = None) -> None:
        """Count a finished step, and exchange what is due. `optimizer.step()` calls it if `join` was given an
        optimizer.

        Waits only while the run holds this peer, and never raises because of the network. `tokens`: the tokens that the
        step was trained on; None: see `join`."""
        seen, self._seen, self._unstepped = self._seen, 0, 0
        loss, self._loss = self._loss, math.nan
        if self._trainer.over:
            return
        self._trainer.stepped(tokens or self._tokens_per_step or seen, loss)

    @property
    def over(self) -> bool:
        """Whether the run is over for this peer.

        Raises the PeerError that ended the daemon for good, because this loop would otherwise train alone for ever."""
        if self._trainer.error is not None:
            raise self._trainer.error
        return self._trainer.finished

    @property
    def error(self) -> PeerError | None:
        """The error that ended the daemon for good. None: the daemon runs, or will be started again."""
        return self._trainer.error

    @property
    def attached(self) -> bool:
        """Whether a daemon takes part in the run now. False: this loop trains alone until the next daemon is ready."""
        return self._trainer.attached

    # -- progress of the run -----------------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """The round of the live params, from 0."""
        return self._trainer.params.round

    @property
    def progress(self) -> float:
        """Fraction of the run's rounds that are over, in [0, 1]."""
        return min(1.0, self.round / self._trainer.total_rounds)

    @property
    def peers(self) -> int:
        """Number of other peers of the run that the daemon knows."""
        return self._trainer.peers

    @property
    def tokens(self) -> int:
        """Tokens that this peer has trained on in the run, in all its processes."""
        return self._trainer.tokens

    @property
    def phase(self) -> str:
        """The daemon's present activity, or the error that ended it, for a person."""
        return self._trainer.daemon_phase if self._trainer.error is None else self._trainer.error.found

    @property
    def lr_factor(self) -> float:
        """Factor on the learning rate of the next step: the manifest's schedule times the operator's factor."""
        return self._trainer.lr_factor

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        """Return a scheduler that sets the learning rate of each parameter group to its first value times `lr_factor`.

        Call the scheduler's `step` after each `optimizer.step()`."""
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: self.lr_factor)

    def log(self, *, loss: float | Tensor | None = None, **values: float | Tensor) -> None:
        """Log numbers of the present step. Call it before `optimizer.step()`.

        `loss`, in nats per token, appears in the round's statistics and in the curve of a notebook. All numbers appear
        in the status, on the page and in the trackers of `JoinOptions.log`, each with its last value. At most 32 names
        are accepted. With several ranks, only the numbers of rank 0 are logged. Raises UsageError for a value that is
        no number, and for more names."""
        numbers = {name: _number(name, value) for name, value in values.items()}
        if loss is not None:
            numbers["loss"] = self._loss = _number("loss", loss)
            self._losses.append((self.tokens, self._loss))
            del self._losses[:-SHOWN_LOSSES]
        self._trainer.log(numbers)

    def evaluate(self) -> float:
        """Return the loss of the live params in nats per token. NaN: there is none.

        It is the loss on the run's hold-out. In a run of a custom model it is the `loss` of `join` on its `holdout`, or
        without one on the batches that `until_end` yields next. Raises UsageError when that `loss` fails."""
        return self._trainer.evaluate()

    def status(self) -> DaemonStatus:
        """Return the daemon's status, as `peer status` shows it. Raises NotRunning while there is no daemon."""
        return from_json(DaemonStatus, self._ask_daemon("status"))

    # -- control -----------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Pause, as `peer pause` does: the next step waits until `resume` is called, or `peer resume` is run."""
        self._ask_daemon("pause")

    def resume(self) -> None:
        """End a pause, as `peer resume` does."""
        self._ask_daemon("resume")

    def state_dict(self) -> dict[str, Any]:
        """Return this loop's place in the run, to store it in a checkpoint of your own."""
        return {"tokens": self.tokens, "round": self.round, "step_in_round": self._trainer.params.step_in_round}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Check that a state of `state_dict` belongs to this home. Restores nothing: the daemon stores the place
        itself.

        Raises UsageError when the state contains work that this home has not done, so that it is of another home."""
        if int(state["tokens"]) > self.tokens:
            found = f"the state is of {int(state['tokens']):,} tokens, and this home has trained on {self.tokens:,}"
            raise UsageError(found, "Join with the home that the state was saved beside.")

    def leave(self) -> None:
        """Leave the run: finish the exchange under way, save the state and end the daemon. Takes at most a minute.

        May be called again."""
        self._leave(LEAVE_S)

    def leave_shortly(self) -> None:
        """Leave the run like `leave`, but within ten seconds. For use after an exception in the loop."""
        self._leave(BROKEN_S)

    def _leave(self, within_s: float) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if isinstance(self._model, nn.Module):
            _joined.discard(self._model)
        _homes.discard(self._home)
        self._trainer.leave(within_s)

    def __enter__(self) -> Swarm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave(LEAVE_S if kind is None else BROKEN_S)

    def _ask_daemon(self, command: str) -> dict[str, Any]:
        """Send a command to the daemon's control socket and return the answer. Raises the PeerError of the daemon.

        Uses an event loop on another thread, because a notebook already runs one on this thread."""
        found: list[dict[str, Any] | PeerError] = []

        def run() -> None:
            try:
                found.append(asyncio.run(send_command(Home(self._home).control_socket, command, STATUS_S)))
            except PeerError as error:
                found.append(error)

        asking = threading.Thread(target=run, name="peer-ask")
        asking.start()
        asking.join()
        if isinstance(found[0], PeerError):
            raise found[0]
        return found[0]

    # -- notebooks ---------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<Swarm round {self.round} of {self._trainer.total_rounds}, {self.peers} peers, {self.phase}>"

    def _repr_html_(self) -> str:
        """Return a table of round, peers and tokens, and the curve of the logged losses, for a notebook."""
        rows = {
            "round": f"{self.round} of {self._trainer.total_rounds}",
            "peers": str(self.peers),
            "tokens": f"{self.tokens:,}",
            "now": self.phase if self.attached else f"training alone: {self.phase}",
        }
        left = 'style="text-align: left"'  # notebooks align to the right
        cells = "".join(
            f"<tr><th {left}>{name}</th><td {left}>{html.escape(value)}</td></tr>" for name, value in rows.items()
        )
        return f"<table>{cells}</table>{_curve(self._losses)}"


def _number(name: str, value: float | Tensor) -> float:
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        fix = "Give a float, or a tensor of one element."
        raise UsageError(f"{name} is {type(value).__name__}, and no number", fix) from error


def _curve(losses: Sequence[tuple[int, float]], width: int = 420, height: int = 120) -> str:
    """Return the curve of the losses over the tokens as SVG, for light and dark pages. Empty: fewer than two losses.

    `losses`: (tokens, loss). `width` and `height`: in pixels, without labels."""
    points = [(tokens, loss) for tokens, loss in losses if math.isfinite(loss)]
    if len(points) < 2:
        return ""
    first, last = points[0][0], points[-1][0]
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    across, up = max(1, last - first), max(1e-9, high - low)
    line = " ".join(
        f"{(tokens - first) / across * width:.1f},{height - (loss - low) / up * height:.1f}" for tokens, loss in points
    )
    labels = (
        (0, -9, "loss in nats a token"),
        (width + 6, 4, f"{high:.3f}"),
        (width + 6, height + 4, f"{low:.3f}"),
        (0, height + 17, f"{first:,}"),
    )
    texts = "".join(f'<text x="{x}" y="{y}">{text}</text>' for x, y, text in labels)
    texts += f'<text x="{width}" y="{height + 17}" text-anchor="end">{last:,} tokens</text>'
    return (
        f'<svg width="{width + 60}" height="{height + 46}" viewBox="-4 -24 {width + 60} {height + 46}" role="img" '
        f'aria-label="loss over tokens" style="font: 11px sans-serif; max-width: 100%">'
        f'<path d="M0,0H{width}M0,{height}H{width}" stroke="currentColor" stroke-opacity=".25"/>'
        f'<polyline points="{line}" fill="none" stroke="#3b82f6" stroke-width="1.5" stroke-linejoin="round"/>'
        f'<g fill="currentColor">{texts}</g></svg>'
    )


def _repeated(loader: Iterable[Batch]) -> Iterator[Batch]:
    """Yield the batches of a loader, iterated again whenever it is exhausted. Raises UsageError if it has none."""
    while True:
        given = False
        for batch in loader:
            yield batch
            given = True
        if not given:
            fix = "Give a DataLoader or another iterable that can be started again, and no generator."
            raise UsageError("the loader has no batches, or was exhausted", fix)


def _tokens_in(batch: Any) -> int:
    """Return the number of elements of a batch's first integer tensor, which are usually its input ids. 0: none."""
    parts: Iterable[Any]
    if isinstance(batch, Tensor):
        parts = (batch,)
    elif isinstance(batch, Mapping):
        parts = (batch[name] for name in ("input_ids", *batch) if name in batch)
    elif isinstance(batch, Sequence):
        parts = batch
    else:
        return 0
    for part in parts:
        if isinstance(part, Tensor) and not part.is_floating_point() and part.dim() > 1:
            return part.numel()
    return 0


def _is_interactive() -> bool:
    """Return whether this process runs in a terminal or a notebook."""
    return (sys.stdin.isatty() and sys.stdout.isatty()) or "ipykernel" in sys.modules


def _show_phase(phase: str) -> None:
    """Show what `join` waits for, which may take minutes, for example if the operator has not started the run yet."""
    if _is_interactive():
        print(f"peer: {phase}", file=sys.stderr, flush=True)


def _confirm(question: str, lines: Sequence[str]) -> bool | None:
    """Show `lines`, which are the run's terms, and ask a question at the terminal or in the notebook.

    None: the process is not interactive, so that nobody can answer."""
    if not _is_interactive():
        print(*lines, sep="\n", file=sys.stderr)  # the error that follows explains how to agree
        return None
    print(*lines, sep="\n")
    try:
        return input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}
    except (EOFError, NotImplementedError):  # IPython's error in a notebook that is executed without a person
        return None
