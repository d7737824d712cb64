"""A run's manifest: a TOML file whose exact bytes are hashed (run id) and signed by the operator's key. It names only
built-in kinds and holds no paths and no addresses: nothing in it makes a volunteer run foreign code or read a file."""

from __future__ import annotations

import base64
import hashlib
import re
import tomllib
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from peer.errors import ManifestError
from peer.identity import Identity, public_key_of, verify
from peer.protocol.messages import RunId
from peer.run.overrides import apply_overrides
from peer.run.presets import resolve
from peer.run.sections import (
    AdmissionSection,
    DataSection,
    LimitsSection,
    ModelSection,
    OptimizerSection,
    Section,
    SyncSection,
    TokenizerSection,
    TrainSection,
    WireSection,
)

FORMAT = 1
MAX_BYTES = 256 * 1024
DOMAIN = b"peer manifest v1"


class Manifest(Section):
    """A checked manifest. Every field is bounded; unknown keys are errors."""

    format: int = Field(ge=1, le=FORMAT)
    name: str = Field("unnamed", min_length=1, max_length=64, pattern=r"^[\w .:-]+$")
    seed: int = Field(0, ge=0, le=2**53)
    operator: str = ""
    """Peer id of the operator's key."""
    start: float = Field(0.0, ge=0, allow_inf_nan=False)
    """When round 0 begins, seconds since the epoch; 0: when the bootstrap node says."""
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    tokenizer: TokenizerSection = TokenizerSection()
    train: TrainSection = TrainSection()
    optimizer: OptimizerSection = OptimizerSection()
    sync: SyncSection = SyncSection()
    wire: WireSection = WireSection()
    limits: LimitsSection = LimitsSection()
    admission: AdmissionSection = AdmissionSection()

    @field_validator("operator")
    @classmethod
    def _is_a_key(cls, value: str) -> str:
        if value:
            public_key_of(value)
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Manifest:
        if self.train.context > self.model.max_position_embeddings:
            raise ValueError("train.context is larger than model.max_position_embeddings")
        if self.model.vocab_size < 256:
            raise ValueError("byte tokens need model.vocab_size of at least 256")
        if self.wire.min > self.wire.max:
            raise ValueError("wire.min is larger than wire.max")
        return self


def parse_manifest(raw: bytes) -> Manifest:
    """Check the bytes of a manifest. Raises ManifestError with every finding at once, each with its line if it has one.
    A newer format is refused before anything else is looked at."""
    if len(raw) > MAX_BYTES:
        raise ManifestError(f"the manifest has {len(raw)} bytes, more than {MAX_BYTES}")
    try:
        text = raw.decode()
        table = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ManifestError(f"the manifest is not TOML: {error}", "See `peer manifest new` for an example.") from error
    version = table.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise ManifestError(
            f"the manifest has format {version}, this program knows up to {FORMAT}",
            "Update this program: pip install -U peer-swarm",
        )
    try:
        manifest = Manifest.model_validate(table)
    except ValidationError as error:
        findings = [_finding(text, item) for item in error.errors()]
        raise ManifestError("the manifest does not check:\n" + "\n".join(findings), "Mend the lines named.") from None
    resolve(manifest.sync)
    return manifest


def _finding(text: str, item: Any) -> str:
    where = [str(part) for part in item["loc"]]
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        message = "unknown key"
    line = _line_of(text, where)
    place = ".".join(where) or "the whole"
    return f"  {f'line {line}, ' if line else ''}{place}: {message}"


def _line_of(text: str, where: list[str]) -> int | None:
    """The line of a key: its last part below the header of its table."""
    table, key = (where[0], where[1]) if len(where) > 1 else ("", where[0] if where else "")
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([\w.]+)\s*\]", line):
            current = header[1]
        elif current == table and re.match(rf"\s*{re.escape(key)}\s*=", line):
            return number
    return None


@dataclass(frozen=True)
class SignedManifest:
    """Exact bytes and the operator's signature over them."""

    raw: bytes
    signature: bytes

    @cached_property
    def run_id(self) -> RunId:
        return RunId(hashlib.sha256(self.raw).digest())

    @cached_property
    def manifest(self) -> Manifest:
        """Raises ManifestError."""
        return parse_manifest(self.raw)

    def verify(self) -> None:
        """Raises ManifestError unless the operator named inside signed these very bytes."""
        operator = self.manifest.operator
        if not operator:
            raise ManifestError("the manifest names no operator", "Run: peer manifest sign FILE")
        if not verify(public_key_of(operator), DOMAIN, self.raw, self.signature):
            raise ManifestError(
                f"the signature is not {operator}'s over these bytes: the manifest was changed after it was signed",
                "If you are the operator: peer manifest sign FILE. If not: get it again from the operator.",
            )


def signature_path(manifest: Path) -> Path:
    return manifest.with_name(manifest.name + ".sig")


def read_text(path: Path) -> str:
    """A manifest file's text. Raises ManifestError when it cannot be read."""
    return _read(path).decode(errors="replace")


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ManifestError(f"cannot read {path}: {error.strerror}", "`peer manifest new` makes one.") from error


def load_signed(path: Path) -> SignedManifest:
    """A manifest file and its signature beside it, checked and verified. Raises ManifestError."""
    raw = _read(path)
    parse_manifest(raw)
    try:
        signature = base64.b64decode(signature_path(path).read_text().strip(), validate=True)
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path} is not signed", f"Run: peer manifest sign {path}") from error
    signed = SignedManifest(raw, signature)
    signed.verify()
    return signed


def sign_file(path: Path, operator: Identity) -> SignedManifest:
    """Sign the bytes of a file as they are; writes the signature beside it. Raises ManifestError when the manifest does
    not check, or names another operator."""
    raw = _read(path)
    named = parse_manifest(raw).operator
    if named != operator.peer_id:
        raise ManifestError(
            f"the manifest names {named or 'nobody'} as operator, your key is {operator.peer_id}",
            f'Write operator = "{operator.peer_id}" into it, or use the --home with the operator\'s key.',
        )
    signed = SignedManifest(raw, operator.sign(DOMAIN, raw))
    _write(signature_path(path), base64.b64encode(signed.signature) + b"\n")
    return signed


def sign_text(text: str, operator: Identity, path: Path) -> SignedManifest:
    """Write a manifest of this text with `operator` as its operator, and sign it. Raises ManifestError."""
    owned = apply_overrides(text, [f"operator={operator.peer_id}"])
    parse_manifest(owned.encode())
    _write(path, owned.encode())
    return sign_file(path, operator)


def write_new(path: Path, operator: Identity) -> SignedManifest:
    """The commented default, signed. Raises ManifestError when there is a file already."""
    if path.exists():
        raise ManifestError(f"{path} exists", "Choose another name; nothing was overwritten.")
    _write(path, default_text(operator.peer_id).encode())
    return sign_file(path, operator)


def default_text(operator: str = "") -> str:
    """The commented default, with this peer id as operator."""
    return resources.files("peer.run").joinpath("default.toml").read_text().replace("{operator}", operator)


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ManifestError(f"cannot write {path}: {error.strerror}", "Choose another place.") from error
