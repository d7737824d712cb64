"""One signed statement: signing, and parsing with verification.

The exact bytes are signed, as with the manifest, so no peer encodes a document a second time. In files, and on the wire
for papers, a statement is one line of text: the document, its signature, and the delegation of a signer who is not the
operator."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from peer.codes import Code
from peer.errors import BadPayload
from peer.identity import Identity, public_key_of, verify
from peer.protocol.messages import PeerId, RunId
from peer.run.statements.kinds import (
    AMENDMENT,
    BEFORE_ISSUE_S,
    DOCUMENTS,
    PAPER,
    DelegationDocument,
    Document,
    Duty,
    Family,
    StartDocument,
)

D = TypeVar("D", bound=Document)
D_co = TypeVar("D_co", bound=Document, covariant=True)


@dataclass(frozen=True)
class Statement(Generic[D_co]):
    """A document with its signature, both verified."""

    document: D_co
    raw: bytes
    signature: bytes
    delegation: Statement[DelegationDocument] | None = None
    """The delegation that allowed the signer, for peers that do not hold it yet. None: the operator signed."""

    @property
    def family(self) -> Family:
        return self.document.family

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 digest. Of an amendment: of its document, which its successor names. Of a paper: of its line."""
        return hashlib.sha256(self.raw if self.family is AMENDMENT else self.line).digest()

    @cached_property
    def line(self) -> bytes:
        """The statement as one line, without the line end."""
        return json.dumps(self._entry()).encode()

    def _entry(self) -> dict[str, Any]:
        entry: dict[str, Any] = {self.family.name: self.raw.decode(), "signature": self.signature.hex()}
        return entry if self.delegation is None else {**entry, "delegation": self.delegation._entry()}


def sign(document: D, key: Identity, delegation: Statement[DelegationDocument] | None = None) -> Statement[D]:
    """Sign a document. `delegation`: that of a node that signs for the operator."""
    assert document.signer(key.peer_id) == key.peer_id, "a key signs for itself alone"
    raw = document.model_dump_json().encode()
    return Statement(document, raw, key.sign(document.family.domain, raw), delegation)


def delegate(
    operator: Identity, run_id: RunId, node: str, may: list[Duty], issued: int, expires: int = 0
) -> Statement[DelegationDocument]:
    """Sign a delegation with the operator's key. Raises ValueError for an invalid peer id of the node."""
    document = DelegationDocument(
        run=run_id.hex(), by=operator.peer_id, node=PeerId(node), may=may, issued=issued, expires=expires
    )
    return sign(document, operator)


def open_line(line: bytes, run_id: RunId, operator: str) -> Statement[Document]:
    """Parse and verify a statement of this run. `operator`: peer id of the key that the manifest names.

    Raises BadPayload: `paper` or `amendment` (cannot be read, or of an unknown kind), `…_run`, `…_signature`,
    `paper_delegation` (the signer has no delegation for it)."""
    try:
        entry = json.loads(line[: AMENDMENT.max_line + 1])
        family = AMENDMENT if AMENDMENT.name in entry else PAPER
        if len(line) > family.max_line:
            raise BadPayload(
                family.garbled_code, f"the {family.name} has {len(line)} bytes, at most {family.max_line} are read"
            )
        statement = _of_entry(family, entry, run_id, operator)
        if (carried := entry.get("delegation")) is not None:
            statement = replace(statement, delegation=_of_entry(PAPER, carried, run_id, operator))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadPayload(Code.PAPER, "a statement that cannot be read") from None
    _ensure_delegated(statement, operator)
    return statement


def _of_entry(family: Family, entry: Mapping[str, Any], run_id: RunId, operator: str) -> Statement[Any]:
    raw, signature = entry[family.name].encode(), bytes.fromhex(entry["signature"])
    return open_document(family, raw, signature, run_id, operator)


def open_document(family: Family, raw: bytes, signature: bytes, run_id: RunId, operator: str) -> Statement[Any]:
    """Parse and verify a document and its signature. Whether the signer has a delegation is not checked.

    Raises BadPayload, as `open_line`."""
    if len(raw) > family.max_bytes:
        raise BadPayload(
            family.garbled_code, f"the {family.name} has {len(raw)} bytes, at most {family.max_bytes} are read"
        )
    try:
        document = DOCUMENTS[family].validate_json(raw)
    except (ValidationError, ValueError, RecursionError) as error:
        text = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise BadPayload(family.garbled_code, f"the {family.name} does not check: {_printable(text)}") from None
    if bytes.fromhex(document.run) != run_id:
        raise BadPayload(family.other_run_code, f"the {family.name} is of another run")
    if not verify(public_key_of(signer := document.signer(operator)), family.domain, raw, signature):
        raise BadPayload(family.unsigned_code, f"{signer} did not sign this {family.name}")
    return Statement(document, raw, signature)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:200])


def _ensure_delegated(statement: Statement[Any], operator: str) -> None:
    """Check a statement against the delegation that it carries. `StatementLog` later applies the newest one."""
    document, carried = statement.document, statement.delegation
    if (signer := document.signer(operator)) == operator:
        if carried is not None:
            raise BadPayload(Code.PAPER_DELEGATION, "the operator needs no delegation")
        return
    if carried is None or document.duty is None:
        raise BadPayload(Code.PAPER_DELEGATION, f"a paper of {signer}, whom the operator did not delegate it to")
    said: Document = carried.document
    if not isinstance(said, DelegationDocument) or said.by != operator or said.node != signer:
        raise BadPayload(Code.PAPER_DELEGATION, f"the delegation of {signer} is not by the operator, or another's")
    if why := document.exceeds(said):
        raise BadPayload(Code.PAPER_DELEGATION, why)
    if isinstance(document, StartDocument) and document.start < said.issued - BEFORE_ISSUE_S:
        raise BadPayload(Code.PAPER_DELEGATION, f"{signer} may not sign a start of {document.start:.0f}")
