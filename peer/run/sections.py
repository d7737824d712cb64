"""The sections of a manifest. Every field is bounded because a manifest comes from a stranger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from peer.methods.registry import PRESETS, RULES
from peer.methods.topology import TOPOLOGIES
from peer.protocol.learning_rate import Schedule
from peer.protocol.messages import WIRE_VERSION
from peer.protocol.model.fragments import MOST_FRAGMENTS
from peer.protocol.round_lengths import MOST_CHANGES
from peer.run.files.artifact import ArtifactRef
from peer.run.files.layout_file import MOST_LAYOUT_BYTES
from peer.run.files.model_config import MOST_CONFIG_BYTES
from peer.run.files.section import Section
from peer.run.files.tokenizer_file import MOST_TOKENIZER_BYTES

Positive = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
"""Factor of a moving average. Must be below 1: at 1 Adam's bias correction divides by zero."""
MOST_BUFFER_BYTES = 256 * 2**20
MOST_INDEX_BYTES = 64 * 2**20
BYTE_VALUES = 256
MUON_MOMENTUM = 0.95
Codec = Literal["fp32", "bf16", "fp16", "int8", "int4", "e3m0", "topk", "modulo7", "modulo6"]
ResultForm = Codec | Literal["sparse"]
if TYPE_CHECKING:
    PresetName = str
    RuleName = str
    TopologyName = str
else:
    PresetName = Literal[tuple(PRESETS)]
    RuleName = Literal[tuple(RULES)]
    TopologyName = Literal[tuple(TOPOLOGIES)]


class LlamaSection(Section):
    """The built-in model. Its fields are named as in transformers' `LlamaConfig`."""

    kind: Literal["llama"] = "llama"
    vocab_size: int = Field(256, ge=2, le=2**20)
    hidden_size: int = Field(64, ge=8, le=2**15)
    intermediate_size: int = Field(176, ge=8, le=2**17)
    num_hidden_layers: int = Field(4, ge=1, le=512)
    num_attention_heads: int = Field(4, ge=1, le=512)
    num_key_value_heads: int = Field(4, ge=1, le=512)
    max_position_embeddings: int = Field(64, ge=8, le=2**20)
    rope_theta: Positive = 10000.0
    rms_norm_eps: Positive = 1e-5

    @model_validator(mode="after")
    def _heads(self) -> LlamaSection:
        wrong = []
        size, heads, shared = self.hidden_size, self.num_attention_heads, self.num_key_value_heads
        if size % heads or (size // heads) % 2:
            near = " or ".join(str(2 * heads * n) for n in (size // (2 * heads), size // (2 * heads) + 1) if n)
            wrong.append(
                "hidden_size must be num_attention_heads times an even number: "
                f"{size} is not so with {heads} heads, {near} would be"
            )
        if heads % shared:
            wrong.append(f"num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({shared})")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    @property
    def parameters(self) -> int:
        """Number of parameters. The head shares the embedding's weights."""
        kv = self.num_key_value_heads * (self.hidden_size // self.num_attention_heads)
        attention = 2 * self.hidden_size * (self.hidden_size + kv)
        layer = attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        return self.vocab_size * self.hidden_size + self.num_hidden_layers * layer + self.hidden_size


class TransformersSection(Section):
    """A causal language model that transformers builds from its config, without foreign code."""

    kind: Literal["transformers"]
    parameters: int = Field(ge=1, le=2**40)
    """Number of parameters. Tied weights count once."""
    config: ArtifactRef
    """The model's config.json."""
    layout: ArtifactRef
    """Names and shapes of the model's tensors: see `peer.run.files.layout_file`."""
    buffers: ArtifactRef | None = None
    """Buffers of a pretrained model that its config does not determine, as safetensors. They are the same on all peers,
    and neither trained nor exchanged. None: the config determines all."""

    @model_validator(mode="after")
    def _sizes(self) -> TransformersSection:
        _at_most("config", self.config, MOST_CONFIG_BYTES)
        _at_most("layout", self.layout, MOST_LAYOUT_BYTES)
        if self.buffers:
            _at_most("buffers", self.buffers, MOST_BUFFER_BYTES)
        return self


class CustomSection(Section):
    """A model whose code exists only in the peers' own training loops. The run fixes its tensors and its first weights
    (`init`)."""

    kind: Literal["custom"]
    parameters: int = Field(ge=1, le=2**40)
    """Number of parameters that are trained and exchanged. Tied weights count once."""
    layout: ArtifactRef
    """Names and shapes of the model's tensors: see `peer.run.files.layout_file`."""
    title: str = Field("", max_length=64, pattern=r"^[\w .:()/+-]*$")
    """Name of the model, for people."""

    @model_validator(mode="after")
    def _sizes(self) -> CustomSection:
        _at_most("layout", self.layout, MOST_LAYOUT_BYTES)
        return self


def _at_most(name: str, artifact: ArtifactRef, most: int) -> None:
    if artifact.size > most:
        raise ValueError(f"{name} has {artifact.size:,} bytes. At most {most:,} are taken")


def _kind_of_model(given: Any) -> Any:
    """Return the kind of a model section, which may be raw or parsed. A raw section without a kind is a `llama`."""
    return given.get("kind", "llama") if isinstance(given, dict) else getattr(given, "kind", None)


MODELS: dict[str, type[Section]] = {
    "llama": LlamaSection,
    "transformers": TransformersSection,
    "custom": CustomSection,
}
ModelSection = Annotated[
    Annotated[LlamaSection, Tag("llama")]
    | Annotated[TransformersSection, Tag("transformers")]
    | Annotated[CustomSection, Tag("custom")],
    Discriminator(
        _kind_of_model,
        custom_error_type="kind",
        custom_error_message=f"Input should be {' or '.join(map(repr, MODELS))}",
    ),
]


class DataSection(Section):
    """The training data of the run.

    `stdlib`: Python source of the standard library. `text`: files in the volunteer's own `--data` folder. `tokens`: the
    shards listed in an index, which peers pass on to each other. `own`: data that the peers' own training loops read
    and that the run does not know."""

    kind: Literal["stdlib", "text", "tokens", "own"] = "stdlib"
    digest: str = Field("", pattern=r"^([0-9a-f]{64})?$")
    """BLAKE3 digest of the corpus (training bytes, then hold-out bytes) of `stdlib` and `text`. Empty: any corpus is
    accepted."""
    index: ArtifactRef | None = None
    """The index of the shards. Required for `tokens`, otherwise not allowed."""
    document_mask: bool = False
    """Whether attention is limited to a token's own document. For `tokens` only."""

    @model_validator(mode="after")
    def _belongs(self) -> DataSection:
        wrong = []
        if self.kind != "tokens" and self.index:
            wrong.append(f'kind "{self.kind}" has no index')
        if self.kind != "tokens" and self.document_mask:
            wrong.append(f'document_mask needs kind "tokens", not "{self.kind}"')
        if self.kind == "tokens" and not self.index:
            wrong.append('kind "tokens" needs an index')
        if self.kind == "tokens" and self.digest:
            wrong.append('kind "tokens" has no digest: its index names every shard')
        if self.kind == "own" and self.digest:
            wrong.append('kind "own" has no digest: each peer reads what it likes')
        if wrong:
            raise ValueError("; ".join(wrong))
        if self.index:
            _at_most("index", self.index, MOST_INDEX_BYTES)
        return self


class TokenizerSection(Section):
    """The tokenizer of the run.

    `bytes`: each byte is a token. `file`: a tokenizer.json."""

    kind: Literal["bytes", "file"] = "bytes"
    vocab_size: int = Field(BYTE_VALUES, ge=2, le=2**24)
    """Number of tokens. Token ids are below it."""
    end_token: int | None = Field(None, ge=0, lt=2**24)
    """The token that ends a document. Required for `file`, otherwise not allowed."""
    file: ArtifactRef | None = None
    """The tokenizer.json. Required for `file`, otherwise not allowed."""

    @model_validator(mode="after")
    def _belongs(self) -> TokenizerSection:
        if self.kind == "bytes":
            if self.file or self.end_token is not None or self.vocab_size != BYTE_VALUES:
                raise ValueError(f'kind "bytes" has {BYTE_VALUES} tokens, no end_token and no file')
            return self
        if self.file is None or self.end_token is None:
            raise ValueError('kind "file" needs vocab_size, end_token and file')
        if self.end_token >= self.vocab_size:
            raise ValueError(f"end_token {self.end_token} is not below vocab_size ({self.vocab_size})")
        _at_most("file", self.file, MOST_TOKENIZER_BYTES)
        return self


class OptimizerSection(Section):
    """The inner optimizer and its learning rate schedule."""

    kind: Literal["adamw", "muon"] = "adamw"
    """`muon`: Muon for the matrices of the blocks, AdamW for all other parameters: see
    `peer.trainer.optimizer.Muon`."""
    lr: Positive = 4e-3
    beta1: Decay = 0.9
    beta2: Decay = 0.95
    momentum: Decay | None = None
    """Momentum of Muon, for `muon` only. None: `MUON_MOMENTUM`."""
    weight_decay: float = Field(0.1, ge=0, le=1)
    clip: Positive = 1.0
    """Norm of the gradient over all parameters to which larger gradients are scaled down."""
    warmup_fraction: Fraction = 0.05
    """Part of the run in which the learning rate rises linearly."""
    schedule: Schedule = "cosine"
    """Shape of the learning rate after the warm-up."""
    decay_fraction: Fraction = 0.2
    """Last part of the run, in which the learning rate of schedule `wsd` falls."""
    final_fraction: Fraction = 0.05
    """Final learning rate as a fraction of `lr`."""

    @model_validator(mode="after")
    def _parts(self) -> OptimizerSection:
        if self.schedule == "wsd" and self.warmup_fraction + self.decay_fraction > 1.0:
            parts = f"warmup_fraction ({self.warmup_fraction:g}) and decay_fraction ({self.decay_fraction:g})"
            raise ValueError(f"{parts} must not be more than 1 together")
        if self.kind == "adamw" and self.momentum is not None:
            raise ValueError('kind "adamw" has no momentum but beta1')
        return self

    @property
    def muon_momentum(self) -> float:
        return MUON_MOMENTUM if self.momentum is None else self.momentum


class TrainSection(Section):
    """Batch size, length of the run, and evaluation."""

    context: int = Field(64, ge=8, le=2**20)
    """Tokens per window."""
    batch: int = Field(4, ge=1, le=2**16)
    """Windows per peer and inner step."""
    total_rounds: int = Field(40, ge=1, le=10**9)
    """Length of the run, in rounds of the first round's length. The learning rate depends on the elapsed part of it."""
    eval_every: int = Field(10, ge=1, le=10**6)
    """Rounds between two evaluations of outer_params."""
    eval_windows: int = Field(128, ge=1, le=2**16)
    """Windows of the hold-out that an evaluation uses, evenly spaced."""


_Change = Annotated[
    tuple[Annotated[int, Field(ge=0, le=10**9)], Annotated[int, Field(ge=1, le=10**6)]], Field(strict=False)
]


class SyncSection(Section):
    """The synchronization method: a preset, and the choices that override it. None: the preset's value."""

    preset: PresetName = "noloco"
    clock: Literal["steps", "seconds"] = "seconds"
    sync_every: Annotated[float, Field(ge=1, le=1e7)] = 300.0
    """Inner steps or seconds (as `clock` says) between two exchanges of the same fragment."""
    topology: TopologyName | None = None
    rule: RuleName | None = None
    outer_lr: Annotated[float, Field(gt=0, le=4)] | None = None
    outer_momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    consensus: Annotated[float, Field(ge=0, le=2)] | None = None
    codec: Codec | None = None
    """Codec of the payload that a peer sends."""
    result_codec: ResultForm | None = None
    """Codec of the result that a shard owner sends to its group."""
    schedule: Literal["full", "streaming"] | None = None
    fragments: Annotated[int, Field(ge=1, le=MOST_FRAGMENTS)] | None = None
    fragment_layout: Literal["whole", "sequential", "strided", "balanced"] | None = None
    fragments_apart: bool | None = None
    """Whether embedding, last norm and head form a fragment of their own, the last one."""
    growth_lr: Annotated[float, Field(gt=0, le=1e3)] | None = None
    """Learning rate below which rounds grow. `growth` is computed from it when the manifest is made."""
    growth: Annotated[tuple[_Change, ...], Field(max_length=MOST_CHANGES, strict=False)] | None = None
    """Entries [round, factor]: from this round on, rounds last `factor` times as long as the first ones."""
    fragment_sync_delay: Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)] | None = None
    """Inner steps or seconds from a round's snapshot to the earliest merge of its result."""
    eager: bool | None = None
    """Whether a group's member applies its own part at once, and the other members' parts later."""
    fragment_update_alpha: Fraction | None = None
    """Part of the local value that a merge keeps."""
    max_group: Annotated[int, Field(ge=1, le=256)] | None = None
    founders: Annotated[int, Field(ge=1, le=256)] | None = None
    """Number of peers that a group begins with. None: the first result counts the peers that were seen."""
    weights: Literal["tokens", "equal"] | None = None
    """Weight of a member in its group's mean: by its tokens, or equal for all."""
    mean: Literal["weighted", "rda"] | None = None
    """The mean of a group. `rda`: direction and length of each tensor are averaged separately."""
    acceptance: Literal["check", "clip", "finite"] | None = None
    """Check that a partner's params must pass before they are averaged."""

    @model_validator(mode="after")
    def _whole_steps(self) -> SyncSection:
        if self.clock == "steps" and self.sync_every != int(self.sync_every):
            raise ValueError(f'sync_every ({self.sync_every:g}) must be a whole number of steps when clock = "steps"')
        return self


class WireSection(Section):
    """The wire versions that peers of the run may speak."""

    min: int = Field(1, ge=1, le=1000)
    max: int = Field(WIRE_VERSION, ge=1, le=1000)


class LimitsSection(Section):
    """Limits that peers enforce on the run's model, payloads and clocks."""

    max_fragment_bytes: int = Field(2**32, ge=1024, le=2**40)
    """Largest payload or state piece that a peer accepts from the wire."""
    max_parameters: int = Field(2**40, ge=1, le=2**40)
    """Largest model. Checked before any file of the model is fetched or opened."""
    max_clock_offset_s: Annotated[float, Field(gt=0, le=86400)] = 60.0
    """Largest difference of clocks, in seconds. Peers beyond it are refused."""


class AdmissionSection(Section):
    """Who may take part in the run."""

    kind: Literal["open", "invited"] = "open"
    """`invited`: peers admit only the operator's nodes and peers that the operator invited (`peer ticket invite`)."""
