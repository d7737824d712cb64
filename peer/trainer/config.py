"""Configuration that the daemon gives a trainer process at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from peer.guest.duty import TrainerShares
from peer.protocol.round_lengths import Growth
from peer.run.sections import DataSection, LlamaSection, ModelSection, OptimizerSection, TokenizerSection, TrainSection

if TYPE_CHECKING:  # a trainer process needs no keys, and starts faster without them
    from peer.run.manifest import Manifest


class TrainerConfig(BaseModel):
    """JSON-able configuration of a trainer. Its sections are the manifest's, and the rest is the volunteer's choice."""

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
    """Growth of the rounds."""
    config_file: str | None = None
    """Where the config.json of a foreign model lies, verified and inspected."""
    buffers_file: str | None = None
    """Where the buffers of a foreign model lie that its config does not give, verified and inspected."""
    seed: int
    """Seed of the run."""
    peer_id: str
    data_dir: str | None = None
    """The only folder that data of kind `text` is read from."""
    data_index: str | None = None
    """File of the index, for data of kind `tokens`."""
    tokenizer_file: str | None = None
    """File of the tokenizer.json, checked by the daemon. Only own texts need it."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    mask_end_token: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """Token that closes a document, when documents of a window do not see each other; None: they do."""
    speed: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the time that the trainer may work."""
    gpu: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the time that the trainer may use the GPU."""
    cpu_cores: Annotated[float, Field(gt=0)] | None = None
    """Processor seconds that the trainer may use a second; None: as many as its threads can."""
    low_priority: bool = False
    """Whether the trainer gives way to other programs."""
    step_seconds: Annotated[float, Field(ge=0, le=1e5)] = 0.0
    """Seconds that an inner step takes at least, with the rest after it."""
    micro_batch: Annotated[int, Field(ge=1, le=2**16)] | None = None
    """Windows that go through the model at once; None: as many as fit."""
    activation_bytes: Annotated[int, Field(ge=0)] | None = None
    """Bytes of free main memory for a step's activations; None: not known."""
    trail: bool = False
    """Whether to log the batches trained on: see `peer.trainer.batch_log`."""

    @classmethod
    def of(cls, manifest: Manifest, peer_id: str, **choices: Any) -> TrainerConfig:
        """Combine the manifest with these choices of the volunteer, by the names of the fields."""
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
        """Return the same with data that this machine has, for what depends on no text. It is Python's standard library
        where the run's data would have to be fetched. Tokens are bytes then, which every vocabulary has."""
        if self.data.kind != "tokens" and (self.data.kind != "text" or self.data_dir is not None):
            return self
        here = {"data": DataSection(kind="stdlib"), "tokenizer": TokenizerSection()}
        none = {"data_index": None, "tokenizer_file": None, "mask_end_token": None, "data_dir": None}
        return self.model_copy(update=here | none)

    @property
    def shares(self) -> TrainerShares:
        """Shares of the machine that the volunteer gave."""
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
