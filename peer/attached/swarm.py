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
"""Last losses that the picture of a notebook shows."""

UNSTEPPED_BATCHES = 1024
"""So many batches without a step are taken for a loop whose optimizer is not the one that joined."""

NO_STEPS = (
    "nothing is exchanged. Call step() of the optimizer that was given to peer.join, or swarm.step() after each step "
    "of a loop without one"
)

_joined: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_homes: set[Path] = set()
"""Homes that this process takes part in a run with."""


@dataclass(frozen=True, kw_only=True)
class JoinOptions:
    """What a volunteer can choose for the daemon of `join`, as the options of `peer join` of the same names. None: as
    `peer join` does by default. Rates are in bytes a second."""

    agreed: bool = False
    """Agree to what the run takes without being asked (`--yes`). Otherwise the terminal or notebook asks, once a
    run."""
    data: Path | str | None = None
    """Texts for evaluations and probes, in a run with data of kind `text`. The loop itself reads what it likes."""
    initial_peers: tuple[str, ...] = ()
    """Addresses of nodes to begin with, beside those of the ticket, as multiaddrs."""
    invitation: str | None = None
    """The invitation to a run that admits invited peers only, or `@FILE`."""
    identity_path: Path | str | None = None
    """File of this peer's key. None: `identity.key` in the home."""
    host_maddrs: tuple[str, ...] = ()
    """Addresses to listen at, as multiaddrs."""
    announce_maddrs: tuple[str, ...] = ()
    """Addresses that others are given instead of those, as behind a forwarded port."""
    port: int | None = None
    """Port of the exchange service. None: any free one."""
    lan: bool | None = None
    """Whether to look for peers in the own network."""
    port_mapping: bool | None = None
    """Whether to ask the router to open a port."""
    max_upload: int | None = None
    """Most bytes that are sent each second."""
    max_download: int | None = None
    """Most bytes that are received each second."""
    daily_upload: int | None = None
    """Most bytes that are sent in a day, local time."""
    monthly_upload: int | None = None
    """Most bytes that are sent in a calendar month."""
    checkpoint_every: float | None = None
    """Least seconds between two checkpoints."""
    keep_checkpoints: int | None = None
    """Number of checkpoints that are kept."""
    wait: float | None = None
    """Seconds to wait for a first answer of the run."""
    min_peers: int | None = None
    """Begin when so many peers are ready."""
    log: tuple[str, ...] = ()
    """Trackers of the metrics and of what `Swarm.log` takes: `csv`, `tensorboard`, `trackio` or `wandb`, each with a
    colon and a place if not the usual one."""
    summary: bool | None = None
    """Whether the operator's node is sent a summary of what this peer does."""

    def arguments(self) -> list[str]:
        """Return the options of the command."""
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

    Fetches the run's state into the parameters of `model`, and from then on exchanges them with other peers inside
    `optimizer.step()`, between two steps. A daemon in a process of its own has the network. Use the result as a context
    manager.

    With several ranks of `torchrun` on one host (DistributedDataParallel or `fully_shard`) it is called on all of them,
    with the same home. Rank 0 has the daemon. All ranks meet at each step, and the methods of the swarm are called on
    all of them. `on_error` is called on rank 0.

    Args:
        ticket: The ticket, or `@FILE` with it. The manifest of its run fixes everything that the peers have to agree
            on.
        model: An `nn.Module`, or a mapping of names to fp32 tensors. Its trainable parameters must be those of the
            run: the same names, shapes and fp32. Their values are replaced.
        optimizer: The optimizer whose `step` ends an inner step. Of a sequence, as Muon beside AdamW, the last one's
            does. None: the loop calls `Swarm.step` itself.
        loss: `loss(model, batch)` returns the mean loss of one of the loop's own batches, in nats a token (of a
            classifier: an image), as a float or a tensor of one element. In a run of a custom model it judges the
            params of partners before they are mixed in, and serves `evaluate`. It is called between two steps, on this
            thread, with other values in the parameters of `model`, in evaluation mode, in fp32 and without gradients,
            and gets the batches that `Swarm.until_end` gives next: 8 of them are drawn ahead for that. Parameters,
            buffers, modes and random generators are put back as they were. Each candidate's loss begins from the same
            torch seed. Other runs are evaluated with the run's own network. None: partners' params are clipped alone.
        holdout: Batches for `loss` that the loop does not train on, kept in memory. `Swarm.evaluate` is their mean
            loss, and the state that a joiner fetches is weighed by the first 8 of them before it is taken.
        tokens_per_step: Tokens that each step trains on, of this rank. None: those of the batches from
            `Swarm.until_end`, else as many as the manifest's batch has.
        home: Folder of key, checkpoints and accounts. The same ticket and home resume. None: PEER_HOME, else the usual
            place.
        options: What else a volunteer can choose.
        on_error: Is called with each fault of the daemon, on this thread, inside `optimizer.step()`. A fault never
            stops the loop: it trains on alone.

    Returns when the first round begins.

    Raises:
        ModelError: The model has another parameter, shape or type than the run; the first one is named.
        UsageError: The optimizer updates none of the parameters, the model is joined already, a value cannot be, or
            the way of training with several ranks is not supported.
        RankLost: Another rank ended or hangs. `optimizer.step()` raises it, too.
        JoinDeclined: Nobody agreed to what the run takes.
        PeerError: Any other error of `peer join`, with its fix: the run is over, nobody of it answers, and so on."""
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
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself finds it out
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
    """Compare a model with a run's manifest file, or with the run of a ticket that this home has joined before.

    Nothing is asked of the network. Raises ModelError, which names the first parameter that differs with both shapes
    and types, and ManifestError when the manifest or the run's layout cannot be read here."""
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
    """A run, as one training loop takes part in it. Made by `join`; ends with its `with` block, or with `leave`.

    All methods belong to the thread that joined."""

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
        """Tokens of the batches that `until_end` gave since the last step."""
        self._unstepped = 0
        """Batches that `until_end` gave since the last step."""
        self._loss = math.nan
        self._losses: list[tuple[int, float]] = []
        self._hook = None if not optimizers else optimizers[-1].register_step_post_hook(lambda *_: self.step())
        if isinstance(model, nn.Module):
            _joined.add(model)
        _homes.add(home)

    # -- the loop ----------------------------------------------------------------------------------------------------

    def until_end(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the loader's batches until the run is over. The loader is started again when it is exhausted.

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
        """Yield the run's own training data without end: inputs and targets, each [batch, context] int64, with the
        targets one token further. Give it to `until_end`, or train on batches of your own.

        Windows are drawn without replacement in an epoch, in an order that each peer and each start has to itself. May
        wait while the daemon fetches a shard; what is due is exchanged meanwhile, as inside a step. Raises UsageError
        with several ranks, where the run has no data, as one of a custom model, or where its data are each volunteer's
        texts and `JoinOptions.data` names none."""
        yield from self._trainer.batches()

    def count(self, batch: Any) -> None:
        """Add the tokens of a batch that `until_end` did not yield to those of the step under way. `batch`: their
        number, or the batch itself."""
        self._seen += batch if isinstance(batch, int) else _tokens_in(batch)

    def step(self, tokens: int | None = None) -> None:
        """Note a finished step, and exchange what is due. `optimizer.step()` calls it where `join` was given one.

        Waits only while the run holds this peer, and never raises for the network. `tokens`: those that the step was
        trained on; None: see `join`."""
        seen, self._seen, self._unstepped = self._seen, 0, 0
        loss, self._loss = self._loss, math.nan
        if self._trainer.over:
            return
        self._trainer.stepped(tokens or self._tokens_per_step or seen, loss)

    @property
    def over(self) -> bool:
        """Whether the run is over for this peer. Raises the PeerError that ended the daemon for good: this loop would
        train alone for ever."""
        if self._trainer.error is not None:
            raise self._trainer.error
        return self._trainer.finished

    @property
    def error(self) -> PeerError | None:
        """The error that ended the daemon for good; None: it runs, or is started again."""
        return self._trainer.error

    @property
    def attached(self) -> bool:
        """Whether the daemon takes part now. False: this loop trains alone, and the daemon is being started."""
        return self._trainer.attached

    # -- where the run is --------------------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """The round that the live params are in, from 0."""
        return self._trainer.params.round

    @property
    def progress(self) -> float:
        """Part of the run's rounds that are over, in [0, 1]."""
        return min(1.0, self.round / self._trainer.total_rounds)

    @property
    def peers(self) -> int:
        """Other peers of the run that the daemon knows."""
        return self._trainer.peers

    @property
    def tokens(self) -> int:
        """Tokens that this peer has trained on in the run, in all its lives."""
        return self._trainer.tokens

    @property
    def phase(self) -> str:
        """What the daemon is doing, for a person."""
        return self._trainer.daemon_phase if self._trainer.error is None else self._trainer.error.found

    @property
    def lr_factor(self) -> float:
        """Factor of the learning rate for the next step: the manifest's schedule times the operator's factor."""
        return self._trainer.lr_factor

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        """Return a scheduler that sets each group's learning rate to its first one times `lr_factor`. Call its `step`
        once a step, after `optimizer.step()`."""
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: self.lr_factor)

    def log(self, *, loss: float | Tensor | None = None, **values: float | Tensor) -> None:
        """Log numbers of the step under way, before `optimizer.step()`.

        `loss`, in nats a token, is in the round's statistics and in the picture of a notebook. All are in the status,
        on the page and in the trackers of `JoinOptions.log`: 32 names at most, each with its last value. Raises
        UsageError for what is no number, and for more names. Of several ranks those of rank 0 are logged."""
        numbers = {name: _number(name, value) for name, value in values.items()}
        if loss is not None:
            numbers["loss"] = self._loss = _number("loss", loss)
            self._losses.append((self.tokens, self._loss))
            del self._losses[:-SHOWN_LOSSES]
        self._trainer.log(numbers)

    def evaluate(self) -> float:
        """Return the loss of the live params in nats a token: on the run's hold-out, or in a run of a custom model that
        of `join` on its `holdout`, else on the batches that `until_end` gives next. NaN where there is none.

        Raises UsageError when the loss of `join` fails."""
        return self._trainer.evaluate()

    def status(self) -> DaemonStatus:
        """Return the daemon's status, as `peer status` shows it. Raises NotRunning while there is no daemon."""
        return from_json(DaemonStatus, self._ask_daemon("status"))

    # -- control -----------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stand still, as `peer pause` does: the next step waits until `resume`, or `peer resume` elsewhere."""
        self._ask_daemon("pause")

    def resume(self) -> None:
        """End a pause."""
        self._ask_daemon("resume")

    def state_dict(self) -> dict[str, Any]:
        """Return this loop's place in the run, for a checkpoint of your own beside those that the daemon keeps."""
        return {"tokens": self.tokens, "round": self.round, "step_in_round": self._trainer.params.step_in_round}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Compare a place that `state_dict` returned with that of the run. The daemon keeps the place itself.

        Raises UsageError when the state is of work that this home has not done: it belongs to another home."""
        if int(state["tokens"]) > self.tokens:
            found = f"the state is of {int(state['tokens']):,} tokens, and this home has trained on {self.tokens:,}"
            raise UsageError(found, "Join with the home that the state was saved beside.")

    def leave(self) -> None:
        """Leave the run: the exchange under way is finished, the state is saved, the daemon ends. At most a minute. May
        be called again."""
        self._leave(LEAVE_S)

    def leave_shortly(self) -> None:
        """Leave the run after an exception in the loop: as `leave`, within ten seconds."""
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
        """Ask on the control socket, in an event loop of our own: a notebook runs one on this thread already."""
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
        """Return round, peers and the curve of the logged losses, for a notebook."""
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
    """Return the losses over the tokens as an SVG picture, for a light or dark page; empty for fewer than two."""
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
    """Yield the batches of a loader, which is started again when it is exhausted. Raises UsageError without any."""
    while True:
        given = False
        for batch in loader:
            yield batch
            given = True
        if not given:
            fix = "Give a DataLoader or another iterable that can be started again, and no generator."
            raise UsageError("the loader has no batches, or was exhausted", fix)


def _tokens_in(batch: Any) -> int:
    """Return the elements of a batch's first tensor of whole numbers, as its input ids are; 0: there is none."""
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
    """Return whether this is a terminal or a notebook."""
    return (sys.stdin.isatty() and sys.stdout.isatty()) or "ipykernel" in sys.modules


def _show_phase(phase: str) -> None:
    """Show what `join` waits for. It may take minutes, as when the operator's node has not started the run."""
    if _is_interactive():
        print(f"peer: {phase}", file=sys.stderr, flush=True)


def _confirm(question: str, lines: Sequence[str]) -> bool | None:
    """Show the run's terms and ask at the terminal or in the notebook. None: there is nobody to ask."""
    if not _is_interactive():
        print(*lines, sep="\n", file=sys.stderr)  # the error that follows says how to agree
        return None
    print(*lines, sep="\n")
    try:
        return input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}
    except (EOFError, NotImplementedError):  # IPython's error in a notebook that is executed without a person
        return None
