"""Coordinates the ranks of one `torchrun` on one host, which meet at each optimizer step.

Rank 0 has the daemon. At a step the other ranks wait for its orders, for example to copy their rows of a snapshot, to
merge a result or to save, until it releases them. They communicate over a Unix socket in the home. Collectives of torch
are not used, so that a lost rank is noticed at once and every wait has a time limit."""

from __future__ import annotations

import os
import queue
import socket
import struct
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import nn

from peer import errors
from peer.attached.names import clean_name
from peer.attached.params import Named
from peer.attached.shards import is_shard
from peer.errors import HomeUnusable, NotRunning, PeerError, RankLost, UsageError, file_advice
from peer.run.home import Home
from peer.trainer.ipc import DaemonPipe, Message

ARRIVE_S = 300.0
"""Most seconds between the calls of `join` on different ranks."""
MEET_S = 1800.0
"""Most seconds that one rank waits for another, the same as the default of gloo's collectives. A process that ends is
noticed at once, so this limit is for processes that hang."""
CONFIRM_S = 24 * 3600.0
"""Most seconds that a person may take to answer a question."""
HEARTBEAT_S = 5.0
"""Seconds between two heartbeats of rank 0 while the other ranks wait."""
POLL_S = 0.05
"""Seconds between two attempts to connect to the socket of rank 0."""
HELLO = struct.Struct("<II")
"""First message of a rank: its number, and the number of ranks."""

ONE_HOST = "Run a torchrun on each host (--nnodes 1): each is one peer, with a home of its own."
DDP_FSDP = "Use DistributedDataParallel or fully_shard over all ranks of the host."

NO_BATCHES = "swarm.batches() gives the run's own data to a loop of one process, and not to several ranks"

ERRORS: dict[str, type[PeerError]] = {
    kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PeerError)
}

_open: weakref.WeakSet[_RankPipe] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Rank:
    """The rank of this process: its `number` among the `world` processes that train one model."""

    number: int
    world: int


def own_rank() -> Rank | None:
    """Return the rank of this process. None: it trains its model alone.

    Raises UsageError when ranks are on several hosts, or when torch.distributed is not initialized yet."""
    initialized = torch.distributed.is_available() and torch.distributed.is_initialized()
    world = torch.distributed.get_world_size() if initialized else int(os.environ.get("WORLD_SIZE") or 1)
    if world == 1:
        return None
    if not initialized:
        found = f"this process is one of {world} by WORLD_SIZE, and torch.distributed is not initialized"
        raise UsageError(found, "Call torch.distributed.init_process_group() before join().")
    local = int(os.environ.get("LOCAL_WORLD_SIZE") or world)
    if local != world:
        raise UsageError(f"{world} ranks are on several hosts: {local} of them are on this one", ONE_HOST)
    return Rank(torch.distributed.get_rank(), world)


def check_ranks(model: Named, optimizers: Sequence[torch.optim.Optimizer], world: int, *, has_loss: bool) -> None:
    """Raise UsageError, which names the cause, for a way of training with several ranks that is not supported."""
    if has_loss:
        found = f"join() takes no loss= with {world} ranks: it would have to be computed on all of them at once"
        raise UsageError(found, "Leave it out. Partners' params are clipped then, and not checked by the loss.")
    for optimizer in optimizers:
        if type(optimizer).__module__.startswith("torch.distributed.optim"):
            found = f"{type(optimizer).__name__} keeps parts of its state on other ranks, or averages params itself"
            raise UsageError(found, "Use an optimizer of torch.optim. fully_shard shards its state with the params.")
    modules = list(model.named_modules()) if isinstance(model, nn.Module) else []
    for name, module in modules:
        if type(module).__name__ == "FullyShardedDataParallel":
            raise UsageError(f"{name or 'the model'} is a FullyShardedDataParallel (FSDP 1)", "Use fully_shard.")
    fully_sharded = [name for name, module in modules if hasattr(module, "set_reshard_after_backward")]
    prefixes = tuple(f"{name}." if name else "" for name in fully_sharded)
    raw = dict(model.named_parameters() if isinstance(model, nn.Module) else model.items())
    for name, tensor in raw.items():
        _check_placement(name, tensor, world)
        if modules and is_shard(tensor) and not name.startswith(prefixes):
            found = f"{clean_name(name)} is sharded by tensor parallelism, which is not supported"
            raise UsageError(found, DDP_FSDP)


def _check_placement(name: str, tensor: Any, world: int) -> None:
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return
    name = clean_name(name)
    shards = [placement for placement in placements if not placement.is_replicate()]
    if len(shards) > 1:
        raise UsageError(f"{name} is sharded twice, as by tensor parallelism, which is not supported", DDP_FSDP)
    for placement in shards:
        if type(placement).__name__ != "Shard" or placement.dim != 0:
            found = f"{name} is placed as {placement}, as by tensor parallelism: only shards of rows are supported"
            raise UsageError(found, DDP_FSDP)
    if tensor.device_mesh.size() != world:
        found = f"{name} lies on {tensor.device_mesh.size()} of {world} ranks, as by pipeline or expert parallelism"
        raise UsageError(found, DDP_FSDP)


def meeting_place(home: Path) -> Path:
    """Return the path of rank 0's socket. It is beside the daemon's socket, in a folder that only the user can read."""
    return Home(home).control_socket.with_suffix(".ranks")


class _RankPipe(DaemonPipe):
    """One end of the socket between two ranks.

    It puts (number of the other rank, message) into a shared inbox, and `{"op": "ended"}` when the socket closes."""

    def __init__(self, line: socket.socket, rank: int, inbox: queue.SimpleQueue[tuple[int, Message]]) -> None:
        self._rank = rank
        self._ranks_inbox = inbox
        super().__init__(line, lambda code: inbox.put((rank, {"op": "ended"})))
        _open.add(self)

    def _receive(self, message: Message) -> None:
        self._ranks_inbox.put((self._rank, message))


def _close_in_forked_child() -> None:
    """Close the sockets in a process that the user's program forked, such as a worker of a DataLoader.

    If such a process outlived its rank with an open socket, the other ranks would not notice the rank's end."""
    for pipe in list(_open):
        pipe.close_in_child()


os.register_at_fork(after_in_child=_close_in_forked_child)


class Ranks:
    """Rank 0's connections to the other ranks.

    During a meeting, which lasts from `gather` to `release`, rank 0 may send orders. For a loop of one process there
    are no other ranks, and all methods return at once."""

    def __init__(self, world: int = 1, place: Path | None = None) -> None:
        """Listen at the path `place` for the `world - 1` other ranks. None: there are none. Raises HomeUnusable."""
        self.world = world
        self._place = place
        self._inbox: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._pipes: dict[int, _RankPipe] = {}
        self._arrived: dict[int, Message] = {}
        """Rank at the meeting -> the message with which it arrived."""
        self._answers: dict[int, Message] = {}
        """Rank -> its answer to the last order."""
        self._orders = 0
        """Number of the last order."""
        self._heartbeat_at = 0.0
        self.lost = False
        """Whether a rank has ended or hangs, so that no order can be executed any more."""
        self.closed = False
        """Whether there were other ranks, and this rank has left them."""
        self._listener = None if place is None else _listen(place, world)

    def accept_all(self) -> None:
        """Wait until all other ranks have connected. Raises RankLost when one does not within `ARRIVE_S`."""
        if self._listener is None:
            return
        assert self._place is not None
        until = time.monotonic() + ARRIVE_S
        try:
            while len(self._pipes) < self.world - 1:
                self._listener.settimeout(max(0.001, until - time.monotonic()))
                line, _ = self._listener.accept()
                line.settimeout(max(0.001, until - time.monotonic()))
                rank, world = HELLO.unpack(line.recv(HELLO.size, socket.MSG_WAITALL))
                line.settimeout(None)
                assert world == self.world, (world, self.world)
                self._pipes[rank] = _RankPipe(line, rank, self._inbox)
                self._arrived[rank] = {"came": "join"}
        except (OSError, struct.error) as error:
            missing = sorted(set(range(1, self.world)) - set(self._pipes))
            raise self._lost_rank(f"rank {missing[0]} of {self.world} did not come to join() with this home") from error
        finally:
            self._listener.close()
            self._place.unlink(missing_ok=True)

    def gather(self, what: str) -> list[Message]:
        """Wait until all other ranks have called the same method, and return their messages.

        `what`: the method. Raises RankLost, and UsageError when a rank called another method."""
        until = time.monotonic() + MEET_S
        while len(self._arrived) < len(self._pipes):
            self._receive(until)
        for rank, message in self._arrived.items():
            if message["came"] == "leave":
                raise self._lost_rank(f"rank {rank} left the run, and this one trains on")
            if message["came"] != what:
                found = f"rank {rank} called {message['came']}() where rank 0 called {what}()"
                raise UsageError(found, "Call the same methods of the swarm on all ranks.")
        return list(self._arrived.values())

    def gather_to_leave(self, within_s: float) -> bool:
        """Wait up to `within_s` for all other ranks, whatever they call. Return whether all have arrived."""
        until = time.monotonic() + within_s
        try:
            while not self.lost and len(self._arrived) < len(self._pipes):
                self._receive(until)
        except RankLost:
            return False
        return not self.lost

    def order(self, op: str, **fields: Any) -> None:
        """Send an order to all other ranks. `wait_answers` waits until it is executed."""
        assert self._arrived.keys() == self._pipes.keys(), "an order outside of the meeting"
        self._orders += 1
        self._answers.clear()
        self._send({"op": op, "number": self._orders, **fields})

    def wait_answers(self) -> list[Message]:
        """Wait until all other ranks have executed the last order, and return their answers.

        Raises RankLost, and the PeerError of a rank that failed."""
        until = time.monotonic() + MEET_S
        while len(self._answers) < len(self._pipes):
            self._receive(until)
        for rank, answer in sorted(self._answers.items()):
            if "error" in answer:
                raise error_in({**answer, "found": f"rank {rank}: {answer['found']}"})
        return list(self._answers.values())

    def heartbeat(self, within_s: float = MEET_S) -> None:
        """Send a heartbeat to the waiting ranks if it is time, and raise RankLost if one has ended.

        `within_s`: most seconds until the next heartbeat, which the other ranks wait for."""
        if not self._pipes:
            return
        if time.monotonic() - self._heartbeat_at >= HEARTBEAT_S or within_s != MEET_S:
            self._heartbeat_at = time.monotonic()
            self._send({"op": "sign", "within_s": within_s})
        while not self._inbox.empty():
            self._receive(time.monotonic())

    def release(self, state: Message) -> None:
        """End the meeting. `state`: the state of the run, which the other ranks show."""
        self._arrived.clear()
        self._send({"op": "go", **state})

    def fail(self, error: PeerError) -> None:
        """End the meeting with an error, which the others raise."""
        self._arrived.clear()
        self._send({"op": "failed", **as_message(error)})

    def close(self) -> None:
        """Close the sockets, which the other ranks notice. May be called again."""
        self.closed = self.world > 1
        if self._listener is not None:
            self._listener.close()
        for pipe in self._pipes.values():
            pipe.close()

    def _send(self, message: Message) -> None:
        for pipe in self._pipes.values():
            pipe.send(message)

    def _receive(self, until: float) -> None:
        try:
            rank, message = self._inbox.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            absent = self._pipes.keys() - self._arrived.keys() or self._pipes.keys() - self._answers.keys()
            raise self._lost_rank(f"rank {min(absent)} did not come to the step, or hangs") from None
        if message.get("op") == "ended":
            raise self._lost_rank(f"rank {rank} ended")
        if "came" in message:
            self._arrived[rank] = message
        elif message["number"] == self._orders:
            self._answers[rank] = message

    def _lost_rank(self, found: str) -> RankLost:
        self.lost = True
        return RankLost(found)


class RankConnection:
    """The connection of another rank to rank 0."""

    def __init__(self, rank: Rank, place: Path) -> None:
        """Connect to rank 0's socket at `place`. Raises RankLost when rank 0 does not listen within `ARRIVE_S`."""
        self._inbox: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        until = time.monotonic() + ARRIVE_S
        while True:
            line = socket.socket(socket.AF_UNIX)
            try:
                line.connect(str(place))
                line.sendall(HELLO.pack(rank.number, rank.world))
                break
            except OSError as error:  # rank 0 does not listen yet, or the socket is left from a killed process
                line.close()
                if time.monotonic() > until:
                    raise RankLost(f"rank 0 did not come to join() with this home: {place}") from error
                time.sleep(POLL_S)  # no event announces the socket of a process that is still starting
        self._pipe = _RankPipe(line, 0, self._inbox)
        self._within_s = MEET_S

    def send(self, message: Message) -> None:
        self._pipe.send(message)

    def receive(self, within_s: float = CONFIRM_S) -> Message:
        """Return the next message of rank 0 other than a heartbeat.

        Raises RankLost when rank 0 has ended or sends no heartbeat, and after `within_s`."""
        until = time.monotonic() + within_s
        while True:
            wait_s = max(0.0, min(self._within_s, until - time.monotonic()))
            try:
                _, message = self._inbox.get(timeout=wait_s)
            except queue.Empty:
                raise RankLost(f"rank 0 gave no sign for {wait_s:.0f} s") from None
            self._within_s = message.get("within_s", MEET_S)
            if message["op"] == "ended":
                raise RankLost("rank 0 ended")
            if message["op"] != "sign":
                return message

    def close(self) -> None:
        self._pipe.close()


def _listen(place: Path, others: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        place.unlink(missing_ok=True)  # left from killed ranks
        listener.bind(str(place))
        listener.listen(others)
    except OSError as error:
        listener.close()
        raise HomeUnusable(f"cannot listen at {place}: {error.strerror}", file_advice(error, place)) from error
    return listener


def as_message(error: PeerError) -> Message:
    """Encode an error for another process. `error_in` decodes it."""
    return {"error": type(error).__name__, "found": error.found, "fix": error.fix, "why": error.why}


def error_in(message: Message) -> PeerError:
    """Decode an error that another process sent. An unknown type becomes NotRunning."""
    return ERRORS.get(message["error"], NotRunning)(message["found"], message["fix"], message["why"])
