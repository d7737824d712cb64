"""`TrainerClient`: the daemon's implementation of the `Trainer` port, over a trainer process and the shared arena."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from peer.aio.tasks import uninterrupted
from peer.errors import HomeUnusable, TrainerDied, file_advice
from peer.ports.trainer import (
    AT_ONCE,
    Counters,
    Evaluation,
    Merge,
    ProbeTerms,
    ShardSkip,
    ShardSource,
    TrainerInfo,
    TrainerProgress,
    WorkDetails,
    WorkRequest,
    WorkSnapshot,
)
from peer.protocol.messages import RoundKey
from peer.protocol.model.layout import Layout
from peer.protocol.pair.probe_verdict import ProbeLosses
from peer.protocol.policy.donors import StateLosses
from peer.trainer.arena import ATTACHED_PLACE, PLACE, Arena, CounterFile, read_counters, shift_file
from peer.trainer.config import TrainerConfig
from peer.trainer.ipc import Message
from peer.trainer.probing.files import AWAITED, probe_file
from peer.trainer.subprocess import LOG, AttachedLoop, TrainerSubprocess

__all__ = ["TrainerClient", "TrainerConfig", "TrainerProgress"]

START_SILENCE_S = 120.0
"""Seconds without a message after which a starting trainer counts as hung."""
HOLDOUT_S, HOLDOUT_LOOK_S = 30.0, 0.25
"""Seconds that `weigh` waits for the hold-out to be fetched, and seconds between two attempts. Training needs the
hold-out first anyway, so the wait is not lost."""


def _ignore_note(note: str) -> None:
    """Ignore a progress note, for callers that show none."""


def _write(file: Path, vectors: Sequence[torch.Tensor]) -> None:
    with file.open("wb") as into:
        for vector in vectors:
            vector.numpy().tofile(into)


class TrainerClient:
    """Implements `peer.ports.trainer.Trainer`, whose docstrings say what each call promises.

    `folder` holds the arena, the counters and the trainer's log. Only one client may use it at a time. The trainer
    process ends by itself when this process ends."""

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        config: TrainerConfig,
        early: TrainerSubprocess | None = None,
        shards: ShardSource | None = None,
    ) -> None:
        """`early`: a process that was started beforehand. The client owns it from now on, and the first `prepare` uses
        it. `shards`: finds the files of data of kind `tokens`. None: the data is of another kind."""
        self._folder = folder.absolute()
        self._layout = layout
        self._config = config
        self._arena: Arena | None = None
        self._child: TrainerSubprocess | None = None
        self._early_process = early
        self._shards = shards
        self._attached = early if early is not None and early.attached is not None else None
        """The program of the user's own loop. It cannot be replaced by another process. None: the built-in loop."""
        self._prepared = False
        """Whether the process was configured, and waits for its first state."""
        self._in_slots = asyncio.Lock()
        self._unmerged = [asyncio.Lock() for _ in layout.fragments]
        """One lock per fragment's slot, held from the copying of a result until the trainer has merged it."""
        self._handovers: set[asyncio.Task[Message]] = set()
        self._evaluations = 0
        self.progress = TrainerProgress()
        self.logged: dict[str, float] = {}
        """Name -> last value that the user's own loop has logged."""
        self._on_note: Callable[[str], None] = _ignore_note

    @property
    def outer_params(self) -> torch.Tensor:
        """Shared memory in which the caller may hold its `outer_params`, flat fp32 of the whole model.

        The trainer reads values that lie here without a copy. Exists from the first `prepare` on."""
        assert self._arena is not None, "nothing was prepared yet"
        return self._arena.inn

    @property
    def attached(self) -> AttachedLoop | None:
        """The user's own loop. None: the built-in loop trains."""
        return None if self._attached is None else self._attached.attached

    def can_resume(self, checkpoint: Path) -> bool:
        """Return whether a checkpoint was written by the kind of loop that trains here.

        A user's own loop cannot resume a checkpoint of the built-in loop, nor the other way round."""
        return (checkpoint / (PLACE if self._attached is None else ATTACHED_PLACE)).exists()

    @property
    def pid(self) -> int | None:
        """Process id of the process started last. None: none was started yet."""
        return self._child.pid if self._child else None

    async def prepare(self) -> None:
        """Start a process that reads the data and builds the model, without waiting for it. `start` gives it the state.

        Ends a former process first. Errors of the preparation itself are raised by the next `start`. Raises
        HomeUnusable, and TrainerDied when the program of an attached loop is gone."""
        if self._attached is not None and self._child is not None:  # an attached loop continues in its own process
            self._prepared = True
            return
        await self.stop()
        CounterFile(self._folder, len(self._layout.fragments))
        if self._arena is None:
            self._arena = await asyncio.to_thread(Arena, self._folder, self._layout, create=True)
        self.progress = TrainerProgress()
        opening = {
            "config": self._config.model_dump(mode="json"),
            "tensors": [tensor.name for tensor in self._layout.tensors],
            "shapes": [tensor.shape for tensor in self._layout.tensors],
            "fragments": self._layout.fragments,
            "folder": str(self._folder),
        }
        try:
            self._child = await self._process()
            if self._shards is not None:
                self._shards.begin(self._answer_shard)
            self._child.begin(opening, self._on_progress, self._folder / LOG)
        except OSError as error:
            found = f"cannot start the trainer in {self._folder}: {error.strerror}"
            raise HomeUnusable(found, file_advice(error, self._folder / LOG)) from error
        self._prepared = True

    async def start(
        self,
        outer_params: torch.Tensor,
        round_: int,
        resume: Path | None,
        on_note: Callable[[str], None] | None = None,
        covered: Sequence[int] | None = None,
    ) -> TrainerInfo:
        """Start training from a state: see `Trainer.start`. Uses the prepared process, or else a new one.

        `on_note` is called with what the starting trainer does, for a person. `covered`: per fragment, the token count
        up to which the journal accounts for the work of a live attached loop. With it the loop keeps its params and the
        work after that count, and `outer_params` are not copied into the model.

        Also raises errors that a person can fix: DataError, MachineTooSmall, ManifestError, StateError, UsageError and
        HomeUnusable."""
        if not self._prepared or self._alive().crashed:
            await self.prepare()
        self._prepared, arena = False, self._arena
        assert arena is not None
        terms: dict[str, Any] = {"round": round_, "resume": str(resume) if resume else None}
        if self._attached is None:  # a user's own loop handles orders only between two of its steps, which may be long
            terms["silence_s"] = START_SILENCE_S
        else:
            terms["covered"] = covered
        self._on_note = on_note or _ignore_note
        try:
            answer = await self._hand_over(arena.inn, outer_params, "start", **terms)
        except BaseException:
            await self.stop()
            raise
        finally:
            self._on_note = _ignore_note
        return TrainerInfo(**answer)

    async def _process(self) -> TrainerSubprocess:
        """Return the process started early if it is alive, else a new one.

        Raises OSError, and TrainerDied when the user's program has ended."""
        early, self._early_process = self._early_process, None
        if self._attached is not None and not self._attached.alive:
            raise TrainerDied("the program with the training loop ended")
        if early is not None and early.alive:
            return early
        return await TrainerSubprocess.spawn(self._folder / LOG, self._config.threads)

    async def work(self, request: WorkRequest) -> WorkSnapshot:
        """Train as the request says, and return the snapshot: see `Trainer.work`.

        Cancellation holds the trainer at its next step boundary, so that a following `save` finds it stopped."""
        child, arena, key = self._alive(), self._arena, request.key
        assert (request.steps is None) != (request.until is None), request
        try:
            answer = await child.call(
                "work",
                round=key.round,
                fragment=key.fragment,
                steps=request.steps,
                until=request.until,
                hold=request.hold,
                lr_scale=request.lr_scale,
                pause_after=request.pause_after,
                round_s=request.round_s,
            )
        except asyncio.CancelledError:
            self.hold()
            raise
        assert arena is not None
        details = WorkDetails(**{field.name: answer.pop(field.name) for field in fields(WorkDetails)})
        return WorkSnapshot(key=key, params=arena.out_slot(key.fragment), details=details, **answer)

    async def apply(
        self, key: RoundKey, outer_params: torch.Tensor, base: int, next_round: int, merge: Merge = AT_ONCE
    ) -> None:
        """Have the trainer merge a result, and wait until it has: see `Trainer.apply`.

        If the call is cancelled, the result is merged nevertheless."""
        self._alive()
        assert self._arena is not None
        slot = self._arena.in_slot(key.fragment)
        terms = dict(fragment=key.fragment, base=base, next_round=next_round, **asdict(merge))
        adding = self._shift(slot, outer_params, terms) if merge.shift else self._merge(slot, outer_params, terms)
        await self._await_completion(slot, outer_params, adding)

    def release(self, key: RoundKey) -> None:
        if self._child is not None:
            self._child.post("release", fragment=key.fragment)

    def hold(self) -> None:
        if self._child is not None:
            self._child.post("hold")

    async def evaluate(self, outer_params: torch.Tensor | None) -> Evaluation:
        child = self._alive()
        assert self._arena is not None
        self._evaluations = number = self._evaluations + 1
        try:
            if outer_params is None:
                return Evaluation(**await child.call("evaluate", own=True, number=number))
            return Evaluation(**await self._hand_over(self._arena.inn, outer_params, "evaluate", number=number))
        except asyncio.CancelledError:
            child.post("give_up", number=number)
            raise

    async def probe(
        self, key: RoundKey, outer_params: torch.Tensor, partner: torch.Tensor, terms: ProbeTerms
    ) -> ProbeLosses | str:
        """Pass the partner's params to the trainer in a temporary file; return the losses: see `Trainer.probe`."""
        child, file = self._alive(), probe_file(self._folder, key.fragment)
        assert self._arena is not None
        slot = self._arena.in_slot(key.fragment)
        in_place = outer_params.data_ptr() == slot.data_ptr()
        given = (partner,) if in_place else (partner, outer_params)
        try:
            await uninterrupted(asyncio.to_thread(_write, file, given))
            answer = await child.call("probe", fragment=key.fragment, in_place=in_place, **asdict(terms))
        finally:
            file.unlink(missing_ok=True)
        if "why" in answer:
            return str(answer["why"])
        guess, source = answer.pop("guess"), answer.pop("source")
        return ProbeLosses(guess=guess, source=source, **{name: tuple(losses) for name, losses in answer.items()})

    async def weigh(self, params: torch.Tensor, seed: int, within_s: float) -> StateLosses | str:
        """Return the losses of a whole model: see `Trainer.weigh`. Uses the prepared process, or else a new one.

        Waits up to `HOLDOUT_S` seconds for a hold-out that is being fetched. Also raises what `start` raises."""
        if not self._prepared or self._alive().crashed:
            await self.prepare()
        assert self._arena is not None
        terms: dict[str, Any] = {"seed": seed, "within_s": within_s}
        terms |= {} if self._attached is not None else {"silence_s": START_SILENCE_S}
        until = asyncio.get_running_loop().time() + HOLDOUT_S
        answer = await self._hand_over(self._arena.inn, params, "weigh", **terms)
        while answer.get("why") == AWAITED and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(HOLDOUT_LOOK_S)
            answer = await self._hand_over(self._arena.inn, params, "weigh", **terms)
        return str(answer["why"]) if "why" in answer else StateLosses(tuple(answer.pop("windows")), **answer)

    async def save(self, folder: Path) -> int:
        """Have the trainer write its part of a checkpoint; return its token count: see `Trainer.save`.

        Also raises OSError when the folder cannot be written. The trainer keeps running."""
        tokens: int = (await self._alive().call("save", folder=str(folder)))["tokens"]
        return tokens

    def counters(self) -> Counters:
        """Read the counters from their file, with or without a running trainer. Raises HomeUnusable for a damaged
        file."""
        return read_counters(self._folder, len(self._layout.fragments))

    async def stop(self) -> None:
        """End the trainer process within two seconds.

        Does not end a process that was started early and is not used yet, nor the user's program of an attached
        loop."""
        self._prepared = False
        if self._attached is not None:
            for handing in self._handovers:
                handing.cancel()  # the user's loop may answer much later, or never
        elif self._child is not None:
            await self._child.end()
        if self._handovers:
            await asyncio.wait(self._handovers)

    def _alive(self) -> TrainerSubprocess:
        if self._child is None:
            raise TrainerDied("never started")
        return self._child

    async def _hand_over(self, slot: torch.Tensor, params: torch.Tensor, op: str, **fields: Any) -> Message:
        """Copy `params` into the slot of the whole model, unless they lie there already, and call `op`."""
        child = self._alive()

        async def copy_and_call() -> Message:
            async with self._in_slots:
                if op != "start":
                    await child.call("clear")  # the slots may hold results that are not merged yet
                await asyncio.to_thread(slot.copy_, params)
                return await child.call(op, **fields)

        in_place = params.data_ptr() == slot.data_ptr()
        return await self._await_completion(slot, params, child.call(op, **fields) if in_place else copy_and_call())

    async def _merge(self, slot: torch.Tensor, params: torch.Tensor, terms: Message) -> Message:
        """Copy `params` into the fragment's slot and send the result.

        The trainer reads the slot at the merge, so the slot's lock is held until then."""
        child = self._alive()
        async with self._unmerged[terms["fragment"]]:
            if params.data_ptr() != slot.data_ptr():
                async with self._in_slots:
                    await asyncio.to_thread(slot.copy_, params)
            return await child.call("apply", **terms)

    async def _shift(self, slot: torch.Tensor, difference: torch.Tensor, terms: Message) -> Message:
        """Send a difference in a temporary file, because the fragment's slot may hold `outer_params` themselves.

        The trainer has read the file by the time it answers."""
        child, file = self._alive(), shift_file(self._folder, terms["fragment"])
        async with self._unmerged[terms["fragment"]]:
            try:
                await asyncio.to_thread(difference.numpy().tofile, file)
                return await child.call("apply", **terms)
            except OSError as error:
                # Restarting is the remedy: a new trainer starts from `outer_params`, which contain the difference.
                raise TrainerDied(f"cannot write {file}: {error.strerror or error}") from error
            finally:
                file.unlink(missing_ok=True)

    async def _await_completion(
        self, slot: torch.Tensor, params: torch.Tensor, handing: Coroutine[Any, Any, Message]
    ) -> Message:
        """Await `handing`, a call that passes values to the trainer, in a task that survives cancellation of the
        caller.

        The slots may be reused only once the trainer has answered or ended."""
        assert params.dtype == torch.float32, params.dtype
        assert params.shape == slot.shape, (params.shape, slot.shape)
        task = asyncio.create_task(handing)
        self._handovers.add(task)
        task.add_done_callback(self._handed_over)
        return await asyncio.shield(task)

    def _handed_over(self, task: asyncio.Task[Message]) -> None:
        self._handovers.discard(task)
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved even when the caller was cancelled

    def _on_progress(self, message: Message) -> None:
        if "note" in message:
            self._on_note(message["note"])
        elif "progress" in message:
            self.progress = TrainerProgress(*message["progress"])
        elif "logged" in message:
            self.logged = {**self.logged, **message["logged"]}
        elif self._shards is None:
            for digest in message.get("ask", ()):
                self._answer_shard(digest, None, "nobody looks for shards here")
        elif "skipped" in message:
            self._shards.skipped(ShardSkip(**message["skipped"]))
        else:
            self._shards.want(message["shards"], message["ask"], message["wrong"])

    def _answer_shard(self, digest: str, path: Path | None, reason: str) -> None:
        if self._child is not None:
            self._child.post("shard", digest=digest, path=str(path) if path else None, reason=reason)
