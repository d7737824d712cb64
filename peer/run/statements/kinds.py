"""The kinds of signed statements. Each is a class with its fields and their checks, who may sign it, which of several
is held, and its sentence for people."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator, model_validator

from peer.clock.local_time import local_time
from peer.codes import Code
from peer.identity import public_key_of
from peer.protocol.messages import LATEST, MAX_ROUND, PeerId
from peer.protocol.policy.amendments import Amendment, Change, describe

MAX_COUNT = 1024
"""Largest number of amendments of a run."""
MAX_REASON = 300
"""Characters of the longest reason."""
BEFORE_ISSUE_S = 86_400
"""Seconds by which a start may precede the delegation that it carries, since the clocks of operator and node differ."""

Duty = Literal["start", "digests", "invitations"]
"""What an operator may delegate to a node. Amendments cannot be delegated."""
DUTIES: tuple[Duty, ...] = ("start", "digests", "invitations")
"""All duties."""
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class Family:
    """Kinds that share encoding, signature domain, error codes and files: amendments, or papers."""

    name: str
    """Key of the document in a line."""
    domain: bytes
    """Signature domain."""
    max_bytes: int
    """Bytes of the largest document."""
    max_line: int
    """Bytes of the longest line, which holds a whole statement."""
    garbled_code: Code
    other_run_code: Code
    unsigned_code: Code
    kept: str
    """File in a run's folder that stores the statements."""
    beside: str
    """Suffix of the operator's own file beside the manifest."""


AMENDMENT = Family(
    name="amendment",
    domain=b"peer amendment v1",
    max_bytes=4096,
    max_line=6 * 4096 + 256,  # the document is a JSON string, in which a byte takes up to six
    garbled_code=Code.AMENDMENT,
    other_run_code=Code.AMENDMENT_RUN,
    unsigned_code=Code.AMENDMENT_SIGNATURE,
    kept="amendments.jsonl",
    beside=".amendments",
)
PAPER = Family(
    name="paper",
    domain=b"peer paper v1",
    max_bytes=1024,
    max_line=4096,
    garbled_code=Code.PAPER,
    other_run_code=Code.PAPER_RUN,
    unsigned_code=Code.PAPER_SIGNATURE,
    kept="papers.jsonl",
    beside=".delegations",
)
FAMILIES = (AMENDMENT, PAPER)


class Document(BaseModel):
    """Base of all kinds of statements."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    family: ClassVar[Family]
    duty: ClassVar[Duty | None] = None
    """Duty that a delegation must name so that its node may sign this kind. None: only the operator signs it."""

    format: Literal[1] = 1
    run: Hash

    def signer(self, operator: str) -> str:
        """Return the peer id of the key that has to sign it."""
        return operator

    def sentence(self) -> str:
        """Describe the statement for a person."""
        raise NotImplementedError


class AmendmentDocument(Document):
    """A change of the live run, and its position in the chain of amendments."""

    family = AMENDMENT

    format: Literal[1]  # no default: earlier versions require the key
    number: int = Field(ge=1, le=MAX_COUNT)
    previous: Hash
    """Digest of the preceding amendment, or the run id for the first one."""
    round: int = Field(ge=0, le=2**53)
    change: Change
    reason: str = Field(default="", max_length=MAX_REASON)
    value: float = Field(default=1.0, gt=0, le=100)
    low: int = Field(default=0, ge=0, le=2**20)
    high: int = Field(default=0, ge=0, le=2**20)
    peer: str = Field(default="", max_length=64)
    digest: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")

    @model_validator(mode="after")
    def _whole(self) -> AmendmentDocument:
        if self.change in (Change.BAN, Change.UNBAN, Change.REVOKE):
            public_key_of(self.peer)
        if self.change is Change.WIRE and not 1 <= self.low <= self.high:
            raise ValueError("a wire range from low to high")
        if self.change is Change.REFOUND and not self.digest:
            raise ValueError("refound names a digest")
        if not self.reason.isprintable():
            raise ValueError("the reason holds what cannot be printed")
        return self

    def amendment(self) -> Amendment:
        """Return the amendment from which the policy of a round is computed."""
        return Amendment(
            self.number,
            self.round,
            self.change,
            self.reason,
            self.value,
            self.low,
            self.high,
            PeerId(self.peer),
            bytes.fromhex(self.digest),
        )

    def sentence(self) -> str:
        return describe(self.amendment())


class PaperDocument(Document):
    """Base of the papers. At most `most` papers of a kind are held, and for each `place` only the one of the lowest
    rank."""

    family = PAPER
    most: ClassVar[int]
    final: ClassVar[bool] = False
    """Whether a paper of the operator's own key displaces all papers of nodes."""

    by: str = Field(max_length=64)
    """Peer id of the signing key."""
    kind: str

    @field_validator("by")
    @classmethod
    def _is_a_key(cls, value: str) -> str:
        public_key_of(value)
        return value

    def signer(self, operator: str) -> str:
        return self.by

    @property
    def place(self) -> Hashable:
        """The place that this paper occupies. Of two papers with the same place the one of lower rank is held."""
        return self.by

    def rank(self, operator: str, tie: int) -> tuple[float, ...]:
        """Return the rank. The lowest is the best. `tie`: differs between any two statements."""
        raise NotImplementedError

    def exceeds(self, delegation: DelegationDocument) -> str:
        """Return why a delegation does not allow its node to sign this paper, as a sentence. Empty: it does."""
        return "" if self.duty in delegation.may else f"{self.by} may not sign: {self.duty}"


class DelegationDocument(PaperDocument):
    """The operator's list of what a node may sign. A later one for the same node replaces it, also for what the node
    signed before. Delegations that revoke everything are held as well, so that an earlier one does not become valid
    again."""

    most = 16

    kind: Literal["delegation"] = "delegation"
    node: str = Field(max_length=64)
    """Peer id of the node."""
    may: list[Duty] = Field(max_length=len(DUTIES))
    issued: int = Field(ge=0, le=LATEST)
    expires: int = Field(default=0, ge=0, le=LATEST)
    """Seconds since the epoch. 0: never."""

    @field_validator("node")
    @classmethod
    def _node_is_a_key(cls, value: str) -> str:
        public_key_of(value)
        return value

    @property
    def place(self) -> Hashable:
        return self.node

    def rank(self, operator: str, tie: int) -> tuple[float, ...]:
        return -self.issued, -tie

    def holds(self, now: float) -> bool:
        """Return whether it has not expired. `now`: seconds since the epoch."""
        return not self.expires or now < self.expires

    def sentence(self) -> str:
        return f"{self.node} may sign: {', '.join(self.may) or 'nothing'}"


class StartDocument(PaperDocument):
    """The start of round 0. One by the operator's own key is final. Otherwise the earliest of the nodes' starts
    holds."""

    duty = "start"
    most = 4
    final = True

    kind: Literal["start"] = "start"
    start: float = Field(gt=0, le=LATEST)
    """Seconds since the epoch."""

    def rank(self, operator: str, tie: int) -> tuple[float, ...]:
        return self.by != operator, self.start, tie

    def exceeds(self, delegation: DelegationDocument) -> str:
        """As in the base class. A start itself does not expire, so its time is compared with the delegation's
        expiry."""
        late = delegation.expires and self.start >= delegation.expires
        return super().exceeds(delegation) or (f"{self.by} may not sign a start of {self.start:.0f}" if late else "")

    def sentence(self) -> str:
        return f"round 0 begins at {local_time(self.start)}"


class DigestDocument(PaperDocument):
    """The digest of the state that all peers had in a round: BLAKE3, computed by `peer.state.snapshot.digest_of_state`.
    In pairs all peers have the same state in round 0 only. The digests of the newest rounds are held."""

    duty = "digests"
    most = 4

    kind: Literal["digest"] = "digest"
    round: int = Field(ge=0, le=MAX_ROUND)
    digest: Hash

    @property
    def place(self) -> Hashable:
        return self.by, self.round, self.digest

    def rank(self, operator: str, tie: int) -> tuple[float, ...]:
        return -self.round, -tie

    def sentence(self) -> str:
        return f"the state of round {self.round} is {self.digest[:16]}"


Paper = DelegationDocument | StartDocument | DigestDocument
"""All kinds of papers, in the order in which they are stored and handed on: a delegation precedes what its node
signed."""
PAPERS: tuple[type[PaperDocument], ...] = get_args(Paper)
MAX_PAPERS = sum(kind.most for kind in PAPERS)
DOCUMENTS: dict[Family, TypeAdapter[Any]] = {
    AMENDMENT: TypeAdapter(AmendmentDocument),
    PAPER: TypeAdapter(Annotated[Paper, Field(discriminator="kind")]),
}
"""Parsers of the documents of each family."""
