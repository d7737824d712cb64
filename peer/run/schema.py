"""The schema of a manifest, and the check of its bytes.

A manifest comes from a stranger. It names built-in kinds only, and holds no paths and no addresses, so that it cannot
make a volunteer run foreign code or read a file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import Field, ValidationError, field_validator

from peer.errors import ManifestError, toml_error
from peer.identity import public_key_of
from peer.methods.registry import new_in
from peer.protocol.messages import LATEST, WIRE_VERSION
from peer.protocol.model.fragments import block_of
from peer.protocol.model.layout import TensorSpec
from peer.run.costs import largest_payload
from peer.run.files.section import Section
from peer.run.manifest_errors import ManifestFinding, listed
from peer.run.model_layout import layout_for, layout_refusal, tensors_of
from peer.run.overrides import SECTIONS, apply_overrides, section_type, written
from peer.run.resolve import method_findings, method_of
from peer.run.sections import (
    MODELS,
    AdmissionSection,
    CustomSection,
    DataSection,
    LimitsSection,
    LlamaSection,
    ModelSection,
    OptimizerSection,
    SyncSection,
    TokenizerSection,
    TrainSection,
    WireSection,
)
from peer.run.sync.growth import growth_findings, rounds_of, unequal_rounds, with_growth

FORMAT = 8
"""The newest format of manifests that this program knows."""
Newer = dict[str, dict[str, tuple[str, ...] | None]]
"""Keys, per section, that programs of an older format do not know. A tuple lists new values of a known key. None: the
key itself is new."""
SINCE_FORMAT_2: Newer = {
    "model": {"kind": ("transformers",)},
    "data": {"kind": ("tokens",)},
    "tokenizer": {"kind": ("file",)},
    "optimizer": {"schedule": None, "decay_fraction": None},
    "limits": {"max_parameters": None},
}
SINCE_FORMAT_3: Newer = {
    "optimizer": {"kind": ("muon",), "momentum": None},
    "sync": {
        **new_in(3),
        "growth_lr": None,
        "growth": None,
        "eager": None,
        "result_codec": ("sparse",),
        "weights": None,
        "mean": None,
    },
}
SINCE_FORMAT_4: Newer = {"sync": {"acceptance": None}, "admission": {"kind": ("invited",)}}
SINCE_FORMAT_5: Newer = {"model": {"buffers": None}}
NO_EAGER_MOMENTUM = 6
"""Format from which the preset `eager` has no momentum."""
CUSTOM_FORMAT = 7
"""Format from which the model may be of kind `custom`."""
SINCE_FORMAT_7: Newer = {"model": {"kind": ("custom",), "title": None}, "data": {"kind": ("own",)}}
SINCE: dict[int, Newer] = {
    2: SINCE_FORMAT_2,
    3: SINCE_FORMAT_3,
    4: SINCE_FORMAT_4,
    5: SINCE_FORMAT_5,
    CUSTOM_FORMAT: SINCE_FORMAT_7,
    8: {"sync": {**new_in(8)}},
}
MAX_BYTES = 256 * 1024
"""Bytes of the largest manifest."""
LONGEST_LINE = 256
"""Bytes of the longest line."""


class Manifest(Section):
    """A checked manifest. Every field is bounded, and unknown keys are errors."""

    format: int = Field(ge=1, le=FORMAT)
    name: str = Field("unnamed", min_length=1, max_length=64, pattern=r"^[\w .:-]+$")
    seed: int = Field(0, ge=0, le=2**53)
    operator: str = ""
    """Peer id of the operator's key. Empty: not signed yet."""
    start: float = Field(0.0, ge=0, le=LATEST)
    """Start of round 0, seconds since the epoch. 0: a signed statement gives it."""
    init: str = Field("", pattern=r"^([0-9a-f]{64})?$")
    """BLAKE3 digest of the first outer_params (fp32, little endian, tensors in the model's own order), which the
    operator's node serves. Empty: they are made from the seed."""
    model: ModelSection = LlamaSection()
    data: DataSection = DataSection()
    tokenizer: TokenizerSection = TokenizerSection()
    train: TrainSection = TrainSection()
    optimizer: OptimizerSection = OptimizerSection()
    sync: SyncSection = SyncSection()
    wire: WireSection = WireSection()
    limits: LimitsSection = LimitsSection()
    admission: AdmissionSection = AdmissionSection()

    @property
    def rounds(self) -> int:
        """Number of rounds of the run. If rounds grow, this is less than `train.total_rounds`."""
        return rounds_of(self.train, self.sync)

    @field_validator("operator")
    @classmethod
    def _is_a_key(cls, value: str) -> str:
        if value:
            public_key_of(value)
        return value


def parse_manifest(raw: bytes, named: str = "the manifest", settings: Sequence[str] = ()) -> Manifest:
    """Parse and check the bytes of a manifest. Raises ManifestError with all findings at once, each with its line if
    known. A newer format is refused before anything else is checked. For a foreign model, `check_layout` checks the
    rest once its layout is here.

    `named`: the file in errors. `settings`: overrides that were applied in memory, in which case no line numbers are
    given because they would not match the file."""
    text, table = _toml(raw, named)
    version = table.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise ManifestError(
            f"the manifest was made by a newer peer: it has format {version}, this program knows up to {FORMAT}",
            "Update this program: peer help install update",
        )
    meant = _as_of_its_format(table)
    manifest, findings = _validate(meant)
    sections, hidden = _sections(meant)
    findings = list(dict.fromkeys([*findings, *hidden, *_too_new(table), *_across(sections), *_of_first(meant)]))
    if manifest is None or findings:
        raise _unfit(named, settings, findings, text)
    return manifest


def _unfit(named: str, settings: Sequence[str], findings: list[ManifestFinding], text: str) -> ManifestError:
    if settings:
        told = f"{named} does not check with {', '.join(settings)}:\n{listed(findings)}"
        return ManifestError(told, "Set other values, or set those that they depend on, too.")
    return ManifestError(f"{named} does not check:\n{listed(findings, text)}", "Mend the lines named.")


def check_layout(manifest: Manifest, tensors: Sequence[TensorSpec]) -> None:
    """Check a manifest against the tensors of its foreign model. Raises ManifestError with all findings."""
    assert sum(tensor.elements for tensor in tensors) == manifest.model.parameters, manifest.model.parameters
    findings = _of_layout(manifest.model, manifest.sync, manifest.limits, tensors)
    if findings:
        raise ManifestError(f"the manifest does not fit its model:\n{listed(findings)}", "Mend the fields named.")


def _toml(raw: bytes, named: str) -> tuple[str, dict[str, Any]]:
    """Return text and table. Size and line length are checked first, because the parser needs quadratic time and memory
    in the length of a dotted key."""
    if len(raw) > MAX_BYTES:
        raise ManifestError(f"{named} has more than {MAX_BYTES} bytes", "A manifest is a short text file.")
    for number, line in enumerate(raw.split(b"\n"), 1):
        if len(line) > LONGEST_LINE:
            raise ManifestError(f"line {number} of {named} has more than {LONGEST_LINE} bytes", "Break it.")
    text = ""
    try:
        text = raw.decode("utf-8-sig")  # some editors write a byte order mark
        return text, tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        what = toml_error(error, text)
        raise ManifestError(f"{named} is not TOML: {what}", "See `peer manifest new` for an example.") from error


def _as_of_its_format(table: dict[str, Any]) -> dict[str, Any]:
    """Return the table with the defaults that its format had, for keys that it does not set: the codec of noloco before
    format 3, the acceptance of pairs before format 4, the momentum of eager before format 6."""
    sync, version = table.get("sync", {}), table.get("format")
    if not isinstance(version, int) or not 1 <= version < NO_EAGER_MOMENTUM or not isinstance(sync, dict):
        return table
    before: dict[str, Any] = {"acceptance": "finite"} if version < 4 and _is_pair(sync) else {}
    if version < 3 and sync.get("preset", "noloco") == "noloco":
        before["codec"] = "bf16"
    if sync.get("preset") == "eager":
        before["outer_momentum"] = 0.5
    return table | {"sync": before | sync}


def _is_pair(sync: dict[str, Any]) -> bool:
    try:
        return method_of(SyncSection.model_validate(sync)).paired
    except ValidationError:
        return False  # the check of the manifest reports the error


def _validate(table: dict[str, Any]) -> tuple[Manifest | None, list[ManifestFinding]]:
    try:
        return Manifest.model_validate(table), []
    except ValidationError as error:
        return None, [_finding(item) for item in error.errors(include_url=False, include_input=False)]


def _finding(item: Any) -> ManifestFinding:
    message = "unknown key" if item["type"] == "extra_forbidden" else item["msg"].removeprefix("Value error, ")
    where = tuple(str(part) for part in item["loc"])
    if item["type"] == "kind":
        where = (*where, "kind")
    elif where[:1] == ("model",) and where[1:2] and where[1] in MODELS:  # pydantic adds the kind, which is no key
        where = (where[0], *where[2:])
    return ManifestFinding(where, message)


def overridden(text: str, settings: Iterable[str]) -> str:
    """Return the text with each `key=value` set, as `apply_overrides` does. The growth of the rounds is computed anew.
    The format is raised if the result needs a newer one, or if `settings` choose a preset whose defaults were different
    in the manifest's format. A format that is set explicitly is not changed."""
    settings = list(settings)
    edited = apply_overrides(text, settings)
    table = with_growth(tomllib.loads(edited))
    needed = max((since for _, _, since in _newer_than_format_1(table)), default=1)
    keys = {setting.partition("=")[0].strip() for setting in settings}
    sync = table.get("sync", {})
    if "sync.preset" in keys and sync.get("preset") == "eager" and "outer_momentum" not in sync:
        needed = max(needed, NO_EAGER_MOMENTUM)
    said = "format" in keys
    low = isinstance(table.get("format"), int) and table["format"] < needed
    return written(edited, table | ({"format": needed} if low and not said else {}))


def _too_new(table: dict[str, Any]) -> list[ManifestFinding]:
    """Return the findings about keys that the manifest's format does not have, which a program of that format would
    misread."""
    said = table.get("format")
    if not isinstance(said, int):
        return []
    newer = [found for found in _newer_than_format_1(table) if found[2] > said >= 1]
    return [ManifestFinding((section, key), f"needs format = {since}") for section, key, since in newer]


def _newer_than_format_1(table: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Yield (section, key, lowest format) for each key that a program of format 1 would not understand."""
    for since, sections in SINCE.items():
        for section, keys in sections.items():
            given = table.get(section)
            for key, values in keys.items():
                if isinstance(given, dict) and key in given and (values is None or given[key] in values):
                    yield section, key, since
    if unequal_rounds(table.get("sync", {})):
        yield "sync", "fragments", 3


def _sections(table: dict[str, Any]) -> tuple[dict[str, Any], list[ManifestFinding]]:
    """Return the valid sections, each checked by itself, and the findings about combinations within a section. Checked
    one by one so that an unknown key or a wrong section does not hide other findings."""
    sections, found = {}, list[ManifestFinding]()
    for name in SECTIONS:
        given = table.get(name, {})
        if not isinstance(given, dict):
            continue  # the check of the whole table reports it
        kind = section_type(name, given)
        known = {key: value for key, value in given.items() if key in kind.model_fields}
        try:
            sections[name] = kind.model_validate(known)
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_input=False)
            told = [item for item in wrong if (name, *item["loc"]) == ("model", "kind")]
            wrong = [item for item in wrong if item not in told]
            found += [_finding({**item, "loc": (name, *item["loc"])}) for item in wrong]
            if all(not item["loc"] for item in wrong):  # only combinations of fields are wrong
                sections[name] = kind.model_construct(**known)
    return sections, found


def _across(sections: dict[str, Any]) -> list[ManifestFinding]:
    """Return the findings about combinations across sections."""
    get = sections.get
    model, sync, wire, limits = get("model"), get("sync"), get("wire"), get("limits")
    found = _of_tokens(model, get("data"), get("tokenizer"), get("train"))
    found += _of_own_loops(model, get("data"))
    if sync:
        found += growth_findings(sync, get("train"), get("optimizer"))
    if wire and wire.min > wire.max:
        found.append(ManifestFinding(("wire", "min"), f"{wire.min} is more than wire.max ({wire.max})"))
    elif wire and not wire.min <= WIRE_VERSION <= wire.max:
        found.append(
            ManifestFinding(("wire", "min"), f"this program speaks wire version {WIRE_VERSION}, the run another one")
        )
    if model and limits and model.parameters > limits.max_parameters:
        found.append(
            ManifestFinding(
                ("limits", "max_parameters"),
                f"the model has {model.parameters:,}, so {limits.max_parameters:,} are too few",
            )
        )
    elif isinstance(model, LlamaSection) and sync:
        return found + _of_layout(model, sync, limits, tensors_of(model))
    return found + (method_findings(sync) if sync else [])


def _of_tokens(
    model: ModelSection | None,
    data: DataSection | None,
    tokenizer: TokenizerSection | None,
    train: TrainSection | None,
) -> list[ManifestFinding]:
    """Return the findings about tokens: vocabulary size, window length and source."""
    found = []
    if isinstance(model, LlamaSection) and train and train.context > model.max_position_embeddings:
        most = model.max_position_embeddings
        found.append(
            ManifestFinding(
                ("train", "context"), f"{train.context} is more than model.max_position_embeddings ({most})"
            )
        )
    if isinstance(model, LlamaSection) and tokenizer and model.vocab_size < tokenizer.vocab_size:
        tokens = "byte tokens need" if tokenizer.kind == "bytes" else "the tokenizer needs"
        told = f"{tokens} at least {tokenizer.vocab_size}, and this is {model.vocab_size}"
        found.append(ManifestFinding(("model", "vocab_size"), told))
    if data and tokenizer and data.kind == "tokens" and tokenizer.kind != "file":
        found.append(ManifestFinding(("data", "kind"), 'kind "tokens" needs tokenizer.kind "file"'))
    return found


def _of_own_loops(model: ModelSection | None, data: DataSection | None) -> list[ManifestFinding]:
    """Return the findings about a data kind that does not suit the model kind."""
    if model is None or data is None:
        return []
    if isinstance(model, CustomSection) and data.kind not in ("own", "tokens"):
        found = 'a model of kind "custom" needs "own", or "tokens" for shards that peers give to each other'
        return [ManifestFinding(("data", "kind"), found)]
    if not isinstance(model, CustomSection) and data.kind == "own":
        return [ManifestFinding(("data", "kind"), 'kind "own" is for a model of kind "custom"')]
    return []


def _of_first(table: dict[str, Any]) -> list[ManifestFinding]:
    """Return a finding when a custom model, whose weights the seed cannot make, names no `init`."""
    model = table.get("model")
    if isinstance(model, dict) and model.get("kind") == "custom" and not table.get("init"):
        return [ManifestFinding(("init",), 'a model of kind "custom" begins from weights that init names')]
    return []


def _of_layout(
    model: ModelSection, sync: SyncSection, limits: LimitsSection | None, tensors: Sequence[TensorSpec]
) -> list[ManifestFinding]:
    """Return the findings about the method: whether it is consistent, whether it can cut this model into fragments, and
    whether the payload is within the limit."""
    found, method = method_findings(sync), method_of(sync)
    cuttable = method.schedule == "streaming" and not any("fragment_layout" in finding.where for finding in found)
    if cuttable and (reason := layout_refusal(method, tensors)):
        found.append(ManifestFinding(("sync", "fragments"), reason))
    if method.mean == "rda" and all(block_of(tensor.name) is None for tensor in tensors):
        found.append(ManifestFinding(("sync", "mean"), "rda is for the tensors of blocks, and the model has none"))
    if limits and not found:
        payload = largest_payload(method, layout_for(model, method, tensors))
        if payload > limits.max_fragment_bytes:
            found.append(
                ManifestFinding(
                    ("limits", "max_fragment_bytes"),
                    f"a payload of this model has {payload} bytes, and this is {limits.max_fragment_bytes}",
                )
            )
    return found
