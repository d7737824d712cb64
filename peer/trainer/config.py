"""Configuration that the daemon sends to a trainer process when it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from peer.guest.duty import TrainerShares
from peer.protocol.round_lengths import Growth
from peer.run.sections import DataSection, LlamaSection, ModelSection, OptimizerSection, TokenizerSection, TrainSection

if TYPE_CHECKING:  # a trainer process needs no keys, and starts faster without them
    from peer.run.manifest import Manifest


class TrainerConfig(BaseModel):
    """Configuration of a trainer, serializable as JSON.

    The sections come from the run's manifest. The other fields are the volunteer's choices and facts of the machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: ModelSection = LlamaSection()
    data: DataSection = DataSection()
    tokenizer: TokenizerSection = TokenizerSection()
    optimizer: OptimizerSection = OptimizerSection()
    train: TrainSection = TrainSection()
    clock: Literal["steps", "seconds"] = "steps"
    sync_every: float
    """Inner steps or seconds, as `clock` says, between two exchanges of the same fragment."""
    growth: Growth = ()
    """How rounds grow in the course of the run: see `peer.protocol.round_lengths`."""
    config_file: str | None = None
    """Path of a foreign model's config.json, which the daemon has verified and inspected."""
    buffers_file: str | None = None
    """Path of a foreign model's buffers that do not follow from its config, verified and inspected by the daemon."""
    seed: int
    """Seed of the run."""
    peer_id: str
    data_dir: str | None = None
    """The folder of the volunteer's texts, for data of kind `text`. Nothing outside of it is read."""
    data_index: str | None = None
    """Path of the index of shards, for data of kind `tokens`."""
    tokenizer_file: str | None = None
    """Path of the tokenizer.json, checked by the daemon. Only data of kind `text` needs it."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    mask_end_token: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """The token that ends a document, if attention is masked between documents of a window. None: no such mask."""
    speed: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the time in which the trainer may work."""
    gpu: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the time in which the trainer may use the GPU."""
    cpu_cores: Annotated[float, Field(gt=0)] | None = None
    """Processor seconds per second that the trainer may use. None: no limit but its threads."""
    low_priority: bool = False
    """Whether the trainer yields the processor to other programs."""
    step_seconds: Annotated[float, Field(ge=0, le=1e5)] = 0.0
    """Minimum duration of an inner step, in seconds. The trainer pauses after a step that was faster."""
    micro_batch: Annotated[int, Field(ge=1, le=2**16)] | None = None
    """Windows that go through the model at once. None: as many as fit into memory."""
    activation_bytes: Annotated[int, Field(ge=0)] | None = None
    """Bytes of main memory that are free for the activations of a step. None: not known."""
    trail: bool = False
    """Whether to log the batches trained on: see `peer.trainer.batch_log`."""

    @classmethod
    def of(cls, manifest: Manifest, peer_id: str, **choices: Any) -> TrainerConfig:
        """Make the configuration from a manifest. `choices`: the fields that do not come from the manifest."""
        return cls(
            model=manifest.model,
            data=manifest.data,
            tokenizer=manifest.tokenizer,
            train=manifest.train,
            optimizer=manifest.optimizer,
            clock=manifest.sync.clock,
            sync_every=manifest.sync.sync_every,
            growth=manifest.sync.growth or (),
            seed=manifest.seed,
            peer_id=peer_id,
            **choices,
        )

    def with_data_here(self) -> TrainerConfig:
        """Return a copy that needs no download, for measurements that do not depend on the text.

        Where the run's data would have to be fetched, the copy uses the source of Python's standard library, one token
        per byte, which is valid in every vocabulary of 256 or more tokens."""
        if self.data.kind != "tokens" and (self.data.kind != "text" or self.data_dir is not None):
            return self
        here = {"data": DataSection(kind="stdlib"), "tokenizer": TokenizerSection()}
        none = {"data_index": None, "tokenizer_file": None, "mask_end_token": None, "data_dir": None}
        return self.model_copy(update=here | none)

    @property
    def shares(self) -> TrainerShares:
        """The limits that the volunteer set for the trainer's use of the machine."""
        return TrainerShares(
            speed=self.speed,
            gpu=self.gpu,
            cores=self.cpu_cores,
            threads=self.threads,
            step_seconds=self.step_seconds,
            low_priority=self.low_priority,
        )

    @property
    def tokens_per_step(self) -> int:
        return self.train.batch * self.train.context
