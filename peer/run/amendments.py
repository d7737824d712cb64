"""Amendments as bytes: small JSON documents, hashed and signed by the run's operator, each naming the one before. The
exact bytes count, as with the manifest: no peer encodes them again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from peer.codes import Code
from peer.errors import BadPayload, ManifestError
from peer.identity import Identity, public_key_of, verify
from peer.protocol.messages import PeerId, RunId
from peer.protocol.policy.amendments import Amendment, Change
from peer.run.home import write_whole

DOMAIN = b"peer amendment v1"
FORMAT = 1
MAX_BYTES = 4096
"""Bytes of the largest amendment."""
MAX_REASON = 300
"""Characters of the longest reason."""
MAX_COUNT = 1024
MAX_FILE = MAX_COUNT * (2 * MAX_BYTES + 256)

_Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Body(BaseModel):
    """The document."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    format: int
    run: _Hash
    number: int = Field(ge=1, le=MAX_COUNT)
    previous: _Hash
    round: int = Field(ge=0, le=2**53)
    change: str
    reason: str = Field(default="", max_length=MAX_REASON)
    value: float = Field(default=1.0, gt=0, le=100)
    low: int = Field(default=0, ge=0, le=2**20)
    high: int = Field(default=0, ge=0, le=2**20)
    peer: str = Field(default="", max_length=64)
    digest: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")

    @model_validator(mode="after")
    def _whole(self) -> _Body:
        if self.format != FORMAT:
            raise ValueError(f"format {self.format}, this program knows {FORMAT}")
        change = Change(self.change)
        if change in (Change.BAN, Change.UNBAN, Change.REVOKE):
            public_key_of(self.peer)
        if change is Change.WIRE and not 1 <= self.low <= self.high:
            raise ValueError("a wire range from low to high")
        if change is Change.REFOUND and not self.digest:
            raise ValueError("refound names a digest")
        if not self.reason.isprintable():
            raise ValueError("the reason holds what cannot be printed")
        return self


@dataclass(frozen=True, slots=True)
class SignedAmendment:
    """`raw` is the document, `signature` Ed25519 by the operator under `DOMAIN`."""

    raw: bytes
    signature: bytes

    @property
    def digest(self) -> bytes:
        """SHA-256, which the next amendment names."""
        return hashlib.sha256(self.raw).digest()


def parse(raw: bytes) -> _Body:
    """Parse a document. Raises BadPayload `amendment` for one that this program does not understand."""
    if len(raw) > MAX_BYTES:
        raise BadPayload(Code.AMENDMENT, f"an amendment of {len(raw)} bytes, at most {MAX_BYTES} are read")
    try:
        return _Body.model_validate_json(raw)
    except (ValidationError, ValueError, RecursionError) as error:
        text = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise BadPayload(Code.AMENDMENT, f"an amendment that does not check: {text[:200]}") from None


class Chain:
    """The amendments of one run, in order. Each was checked against all before it."""

    def __init__(self, run_id: RunId, operator: str) -> None:
        """`operator`: peer id of the key that signs."""
        self._run_id = run_id
        self.operator = PeerId(operator)
        self._key = public_key_of(operator)
        self.signed: list[SignedAmendment] = []
        self.amendments: list[Amendment] = []

    @property
    def head(self) -> bytes:
        """Digest of the last amendment, or the run id: what the next one has to name."""
        return self.signed[-1].digest if self.signed else bytes(self._run_id)

    def extend(self, signed: SignedAmendment) -> Amendment:
        """Add the next one.

        Raises BadPayload and changes nothing: `amendment` (garbled), `amendment_run`, `amendment_signature`,
        `amendment_fork` (the operator signed another one under a number held here), `amendment_order` (a gap, or
        another predecessor). It may take effect before those in front of it, so that none of them can bind the operator
        for ever. Earlier versions of this program refuse such a one, and all that follow on it."""
        body = parse(signed.raw)
        if bytes.fromhex(body.run) != self._run_id:
            raise BadPayload(Code.AMENDMENT_RUN, "an amendment of another run")
        if not verify(self._key, DOMAIN, signed.raw, signed.signature):
            raise BadPayload(Code.AMENDMENT_SIGNATURE, "an amendment that the operator did not sign")
        held = len(self.signed)
        if body.number <= held and self.signed[body.number - 1].raw != signed.raw:
            reason = f"the operator signed two amendments number {body.number}, and the first one to arrive holds here"
            raise BadPayload(Code.AMENDMENT_FORK, reason)
        if body.number != held + 1 or bytes.fromhex(body.previous) != self.head:
            raise BadPayload(
                Code.AMENDMENT_ORDER, f"amendment {body.number} does not follow on number {held} held here"
            )
        self.signed.append(signed)
        self.amendments.append(_amendment(body))
        return self.amendments[-1]

    def since(self, held: int, head: bytes) -> list[SignedAmendment]:
        """Return the amendments that a peer with `held` of them lacks. `head`: the digest of its last one. A peer with
        another one under that number gets ours of that number too: so it sees that the operator signed two."""
        if not 0 < held <= len(self.signed):
            return self.signed[held:]
        same = self.signed[held - 1].digest == head
        return self.signed[held:] if same else self.signed[held - 1 :]

    def make(self, operator: Identity, round_: int, change: Change, reason: str, **fields: Any) -> SignedAmendment:
        """Write, sign and add the next amendment. Raises BadPayload when it does not check."""
        body = {
            "format": FORMAT,
            "run": self._run_id.hex(),
            "number": len(self.signed) + 1,
            "previous": self.head.hex(),
            "round": round_,
            "change": change.value,
            "reason": reason,
            **fields,
        }
        raw = json.dumps(body).encode()
        signed = SignedAmendment(raw, operator.sign(DOMAIN, raw))
        self.extend(signed)
        return signed


def _amendment(body: _Body) -> Amendment:
    return Amendment(
        body.number,
        body.round,
        Change(body.change),
        body.reason,
        body.value,
        body.low,
        body.high,
        PeerId(body.peer),
        bytes.fromhex(body.digest),
    )


def beside(manifest: Path) -> Path:
    """Return the path of the operator's amendments: `run.toml` to `run.amendments`."""
    return manifest.with_suffix(".amendments")


def lines_of(chain: Chain) -> bytes:
    """Encode the file: one amendment a line."""
    lines = [json.dumps({"amendment": s.raw.decode(), "signature": s.signature.hex()}) for s in chain.signed]
    return "".join(line + "\n" for line in lines).encode()


def keep(path: Path, chain: Chain) -> None:
    """Write the file completely or not at all. Raises HomeUnusable."""
    write_whole(path, lines_of(chain))


def load(path: Path, chain: Chain) -> list[Amendment]:
    """Add the amendments of a file to the chain, and return the new ones. A missing file holds none.

    Raises ManifestError, naming the line, when one does not check. Those before it are added."""
    try:
        raw = path.read_bytes()[: MAX_FILE + 1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ManifestError(f"cannot read {path}: {error.strerror}", "Make it readable.") from error
    added = []
    for number, signed in _parse_lines(path, raw):
        if number <= len(chain.signed):
            if chain.signed[number - 1] != signed:
                raise ManifestError(
                    f"{path}, line {number}: another amendment {number} is in force already",
                    "The first one of a number holds. Restore the file, and amend again behind it.",
                )
            continue
        try:
            added.append(chain.extend(signed))
        except BadPayload as error:
            raise ManifestError(f"{path}, line {number}: {error.reason}", "Restore the file from a copy.") from None
    return added


def _parse_lines(path: Path, raw: bytes) -> Iterator[tuple[int, SignedAmendment]]:
    if len(raw) > MAX_FILE:
        raise ManifestError(f"{path} is longer than any chain of amendments", "Restore the file from a copy.")
    for number, line in enumerate(raw.splitlines(), 1):
        try:
            entry = json.loads(line)
            yield number, SignedAmendment(entry["amendment"].encode(), bytes.fromhex(entry["signature"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ManifestError(f"{path}, line {number}: cannot be read", "Restore the file from a copy.") from None
