"""`Follower`: the part of an attached loop on ranks other than 0, which execute rank 0's orders at each step."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from peer.attached.own_loss import UpcomingBatches
from peer.attached.params import Named, check_optimizers, match_tensors
from peer.attached.rank_tensors import RankTensors, reshard
from peer.attached.ranks import NO_BATCHES, Rank, RankConnection, as_message, error_in
from peer.attached.saving import load, save
from peer.errors import PeerError, RankLost, UsageError
from peer.protocol.model.layout import Layout, TensorSpec
from peer.trainer.arena import Arena
from peer.trainer.ipc import Message

log = logging.getLogger("peer")


class Follower:
    """The counterpart of `AttachedTrainer` on ranks other than 0. It has the methods that `Swarm` uses."""

    judges_by_loss = False
    pid = None
    """None: only rank 0 has a daemon."""

    def __init__(self, model: Named, optimizers: Sequence[torch.optim.Optimizer], rank: Rank, place: Path) -> None:
        """`place`: path of rank 0's socket."""
        self._model = model
        self._optimizers = list(optimizers)
        self._rank = rank
        self._place = place
        self._connection: RankConnection | None = None
        self._thread = threading.get_ident()
        self._process = os.getpid()
        self.params: RankTensors
        self.upcoming = UpcomingBatches()
        self.over = False
        """Whether the run is over, or was left."""
        self.finished = False
        self.attached = False
        self.error: PeerError | None = None
        """The error that ended rank 0's daemon for good. None: it has one, or will start another."""
        self.daemon_phase, self.peers, self.tokens, self.total_rounds, self.lr_factor = "starting", 0, 0, 1, 1.0
        self._value = math.nan

    def join(self) -> None:
        """Wait until rank 0 has joined. Raises the PeerError that it raised, and RankLost."""
        self._connection = RankConnection(self._rank, self._place)
        try:
            self._obey()
        except BaseException:
            self.close()
            raise

    def end_interrupted_wait(self) -> None:
        """Do nothing: an interrupt ends the meeting with the other ranks, so there is no wait to continue."""

    def stepped(self, tokens: int, loss: float = math.nan) -> None:
        """Meet the other ranks after an optimizer step, and execute rank 0's orders.

        Raises RankLost, and UsageError on another thread, in a forked child, and when rank 0 called another method."""
        if not self.over:
            self._meet({"came": "step", "tokens": tokens, "loss": None if math.isnan(loss) else loss})

    def log(self, numbers: Mapping[str, float]) -> None:
        """Do nothing: only the numbers of rank 0 are logged. The loss is sent with the step."""

    def evaluate(self) -> float:
        """Return the loss that rank 0 computes for the live params. NaN: this rank has left."""
        if self._connection is None:
            return math.nan
        self._meet({"came": "evaluate"})
        return self._value

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Raise UsageError: with several ranks, the run's own data is not available."""
        raise UsageError(NO_BATCHES, "Give the loop batches of your own.")

    def leave(self, within_s: float) -> None:
        """Execute rank 0's last orders, such as the last save, and leave. Takes at most `2 * within_s`."""
        try:
            if self._connection is not None:
                self._connection.send({"came": "leave"})
                self._obey(2 * within_s)
        except RankLost as error:  # rank 0 has left already, or cannot leave in time
            log.debug("left without rank 0: %s", error)
        except PeerError as error:
            log.warning("%s", error)
        finally:
            self.close()

    def close(self) -> None:
        """Close the socket to rank 0, which notices it. May be called again."""
        self.over = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- orders ------------------------------------------------------------------------------------------------------

    def _meet(self, arrival: Message) -> None:
        if os.getpid() != self._process or threading.get_ident() != self._thread:
            found = "the step is made on another thread or in another process than join()"
            raise UsageError(found, "Join where you train.")
        assert self._connection is not None
        self._connection.send(arrival)
        self._obey()

    def _obey(self, within_s: float | None = None) -> None:
        """Execute orders until rank 0 ends the meeting. Raises RankLost, and the PeerError that rank 0 sends."""
        connection = self._connection
        assert connection is not None
        orders: dict[str, Callable[[Message], Message]] = {
            "open": self._open,
            "save": self._save,
            "restore": self._restore,
        }
        while True:
            message = connection.receive() if within_s is None else connection.receive(within_s)
            if message["op"] == "go":
                self._note_state(message)
                return
            if message["op"] == "failed":
                raise error_in(message)
            try:
                if message["op"] in orders:
                    answer = orders[message["op"]](message)
                else:
                    self.params.execute(message)
                    answer = {}
            except PeerError as error:
                answer = as_message(error)  # rank 0 raises it, and sends it to all ranks
            connection.send({"number": message["number"], **answer})

    def _open(self, message: Message) -> Message:
        """Bind the tensors to the run's layout, as rank 0 does."""
        named = zip(message["tensors"], message["shapes"], strict=True)
        tensors = tuple(TensorSpec(name, tuple(shape)) for name, shape in named)
        layout = Layout(tensors, tuple((first, end) for first, end in message["fragments"]))
        folder = Path(message["folder"])
        reshard(self._model)
        arena = Arena(folder, layout, create=False)
        self.params = RankTensors(layout, match_tensors(self._model, tensors), self._rank.number, arena, folder)
        check_optimizers(self._optimizers, self.params.tensors)
        return {}

    def _save(self, message: Message) -> Message:
        """Write this rank's part of a checkpoint. Params that are not sharded are written by rank 0 alone."""
        if not self.params.sharded:
            return {}
        place = message["tokens"], 0, 0, 0
        shard = self._rank.number, self._rank.world
        try:
            save(Path(message["folder"]), self.params.named(), self._optimizers, place, (), shard)
        except (OSError, SafetensorError) as error:
            return {"failed": str(error)}
        return {}

    def _restore(self, message: Message) -> Message:
        shard = (self._rank.number, self._rank.world) if self.params.sharded else (0, 1)
        found, optimizers = load(
            Path(message["folder"]), self.params.named(), self._optimizers, message["tokens"], shard
        )
        log.info(optimizers)
        return {"restored": found is not None}

    def _note_state(self, state: Message) -> None:
        self.params.move_to(state["round"], state["step_in_round"])
        self.over, self.finished, self.attached = state["over"], state["finished"], state["attached"]
        self.daemon_phase, self.peers, self.tokens = state["phase"], state["peers"], state["tokens"]
        self.total_rounds, self.lr_factor = state["total_rounds"], state["lr_factor"]
        self.error = None if state["error"] is None else error_in(state["error"])
        value = state.get("value")
        self._value = math.nan if value is None else value
