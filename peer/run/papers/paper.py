"""A paper: a short JSON document that a run's operator signed, or a node that holds the operator's delegation.

The exact bytes count, as with the manifest: no peer encodes a paper again. One line of text holds a whole paper, on the
wire as in files: the document, its signature, and the delegation of a signer who is not the operator."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from peer.codes import Code
from peer.errors import BadPayload
from peer.identity import Identity, public_key_of, verify
from peer.protocol.messages import LATEST, MAX_ROUND, PeerId, RunId

DOMAIN = b"peer paper v1"
MAX_BYTES = 1024
"""Bytes of the largest document."""
MAX_LINE = 4096
"""Bytes of the largest paper as a line."""
BEFORE_ISSUE_S = 86_400
"""A node may sign a start at most so long before the delegation that the start carries: two clocks differ."""

Duty = Literal["start", "digests", "invitations"]
DUTIES: tuple[Duty, ...] = ("start", "digests", "invitations")
"""What an operator may delegate. Amendments are not among it."""
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    format: Literal[1] = 1
    run: Hash
    by: str = Field(max_length=64)
    """Peer id of the key that signs."""

    @field_validator("by")
    @classmethod
    def _is_a_key(cls, value: str) -> str:
        public_key_of(value)
        return value


class StartDocument(_Document):
    """When round 0 begins, seconds since the epoch."""

    kind: Literal["start"] = "start"
    start: float = Field(gt=0, le=LATEST)


class DigestDocument(_Document):
    """What the state of all peers was in a round: BLAKE3 as `peer.state.snapshot.digest_of_state` makes it. In pairs
    all have the same state in round 0 alone."""

    kind: Literal["digest"] = "digest"
    round: int = Field(ge=0, le=MAX_ROUND)
    digest: Hash


class DelegationDocument(_Document):
    """The operator's word on what a node may sign. A later one for the same node replaces it, also for what the node
    signed before."""

    kind: Literal["delegation"] = "delegation"
    node: str = Field(max_length=64)
    """Peer id of the node."""
    may: list[Duty] = Field(max_length=len(DUTIES))
    issued: int = Field(ge=0, le=LATEST)
    expires: int = Field(default=0, ge=0, le=LATEST)
    """Seconds since the epoch; 0: never."""

    @field_validator("node")
    @classmethod
    def _node_is_a_key(cls, value: str) -> str:
        public_key_of(value)
        return value


Document = StartDocument | DigestDocument | DelegationDocument
_DOCUMENT: TypeAdapter[Document] = TypeAdapter(Annotated[Document, Field(discriminator="kind")])


@dataclass(frozen=True)
class Paper:
    """A document and its signature, both checked."""

    document: Document
    raw: bytes
    signature: bytes
    delegation: Paper | None = None
    """What let its signer sign it, for who does not hold that yet; None: the operator signed."""

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the line."""
        return hashlib.sha256(self.line).digest()

    @cached_property
    def line(self) -> bytes:
        """One line, without its end."""
        return json.dumps(self._entry()).encode()

    def _entry(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"paper": self.raw.decode(), "signature": self.signature.hex()}
        return entry if self.delegation is None else {**entry, "delegation": self.delegation._entry()}


def sign_paper(document: Document, key: Identity, delegation: Paper | None = None) -> Paper:
    """Sign a document. `delegation`: of a node that signs for the operator."""
    assert document.by == key.peer_id, "a key signs for itself alone"
    raw = document.model_dump_json().encode()
    return Paper(document, raw, key.sign(DOMAIN, raw), delegation)


def open_paper(line: bytes, run_id: RunId, operator: str) -> Paper:
    """Read and check a paper of this run. `operator`: peer id of the key that the manifest names.

    Raises BadPayload: `paper` (garbled, or of a kind that this program does not know), `paper_run`, `paper_signature`,
    `paper_delegation` (the operator did not let its signer sign it)."""
    if len(line) > MAX_LINE:
        raise BadPayload(Code.PAPER, f"a paper of {len(line)} bytes, at most {MAX_LINE} are read")
    try:
        entry = json.loads(line)
        delegation = entry.get("delegation")
        paper = _checked(entry, run_id)
        given = None if delegation is None else _checked(delegation, run_id)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadPayload(Code.PAPER, "a paper that cannot be read") from None
    if given is not None:
        paper = Paper(paper.document, paper.raw, paper.signature, given)
    _ensure_allowed(paper, operator)
    return paper


def _checked(entry: dict[str, Any], run_id: RunId) -> Paper:
    """Raises BadPayload; ValueError, KeyError, TypeError or AttributeError for what is no entry."""
    raw, signature = entry["paper"].encode(), bytes.fromhex(entry["signature"])
    if len(raw) > MAX_BYTES:
        raise BadPayload(Code.PAPER, f"a document of {len(raw)} bytes, at most {MAX_BYTES} are read")
    try:
        document = _DOCUMENT.validate_json(raw)
    except ValidationError as error:
        raise BadPayload(Code.PAPER, f"a paper that does not check: {error.errors()[0]['type']}") from None
    if bytes.fromhex(document.run) != run_id:
        raise BadPayload(Code.PAPER_RUN, "a paper of another run")
    if not verify(public_key_of(document.by), DOMAIN, raw, signature):
        raise BadPayload(Code.PAPER_SIGNATURE, "a paper that its signer did not sign")
    return Paper(document, raw, signature)


def _ensure_allowed(paper: Paper, operator: str) -> None:
    """Check a paper against the delegation that it carries. A newer one decides in the end: see `PaperShelf`."""
    document, given = paper.document, paper.delegation
    if document.by == operator:
        if given is not None:
            raise BadPayload(Code.PAPER_DELEGATION, "the operator needs no delegation")
        return
    if given is None or isinstance(document, DelegationDocument):
        raise BadPayload(Code.PAPER_DELEGATION, f"a paper of {document.by}, whom the operator did not delegate it to")
    said = given.document
    if not isinstance(said, DelegationDocument) or said.by != operator or said.node != document.by:
        raise BadPayload(Code.PAPER_DELEGATION, f"the delegation of {document.by} is not by the operator, or another's")
    if why := refusal_reason(document, said):
        raise BadPayload(Code.PAPER_DELEGATION, why)
    if isinstance(document, StartDocument) and document.start < said.issued - BEFORE_ISSUE_S:
        raise BadPayload(Code.PAPER_DELEGATION, f"{document.by} may not sign a start of {document.start:.0f}")


def refusal_reason(document: StartDocument | DigestDocument, said: DelegationDocument) -> str:
    """Return why a delegation does not let its node sign a document, as a sentence. Empty: it does.

    A start does not expire, so its own time counts. Whether the delegation of a digest's signer has expired is for the
    reader to look at, who knows the time."""
    duty: Duty = "start" if isinstance(document, StartDocument) else "digests"
    if duty not in said.may:
        return f"{document.by} may not sign: {duty}"
    if isinstance(document, StartDocument) and said.expires and document.start >= said.expires:
        return f"{document.by} may not sign a start of {document.start:.0f}"
    return ""


def delegate(operator: Identity, run_id: RunId, node: str, may: list[Duty], issued: int, expires: int = 0) -> Paper:
    """Sign a delegation. Raises ValueError for a node that is no peer id."""
    document = DelegationDocument(
        run=run_id.hex(), by=operator.peer_id, node=PeerId(node), may=may, issued=issued, expires=expires
    )
    return sign_paper(document, operator)
