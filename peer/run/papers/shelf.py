"""The papers of one run that a peer holds. Whatever order they come in, who holds the same papers rules the same."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from peer.errors import BadPayload, ManifestError
from peer.identity import Identity
from peer.protocol.messages import PeerId, RunId
from peer.run.home import write_whole
from peer.run.papers.paper import (
    MAX_LINE,
    DelegationDocument,
    DigestDocument,
    Duty,
    Paper,
    StartDocument,
    open_paper,
    sign_paper,
)

PAPERS = "papers.jsonl"
"""File of a run's folder that keeps them."""
MAX_DELEGATIONS = 16
"""Nodes that an operator may trust at a time: the latest that were named."""
MAX_DIGESTS = 4
"""The digests of the newest rounds are held."""
MAX_HELD = 1 + MAX_DELEGATIONS + MAX_DIGESTS
MAX_FILE = MAX_HELD * (MAX_LINE + 1)


class PaperShelf:
    """One run's papers, each of them checked.

    It keeps one start: the operator's own before a node's, then the earliest, then the first by digest."""

    def __init__(self, run_id: RunId, operator: str) -> None:
        """`operator`: peer id of the key that the manifest names."""
        self.run_id = run_id
        self.operator = operator
        self.taken = 0
        """Papers that were new, since this object was made."""
        self.start: Paper | None = None
        self._delegations: dict[PeerId, Paper] = {}
        self._digests: list[Paper] = []

    def __iter__(self) -> Iterator[Paper]:
        """Return them with the delegations first."""
        yield from self._delegations.values()
        if self.start is not None:
            yield self.start
        yield from self._digests

    @property
    def start_time(self) -> float:
        """When round 0 began, seconds since the epoch; 0: no paper says."""
        return 0.0 if self.start is None else _started(self.start)

    def digests(self, now: float) -> list[DigestDocument]:
        """Return the digests of the run's state, the newest round first, whose signers may sign some still."""
        held = (paper.document for paper in self._digests if self.may(paper.document.by, "digests", now))
        return [document for document in held if isinstance(document, DigestDocument)]

    def delegation_of(self, node: str, duty: Duty, now: float) -> Paper | None:
        """Return what lets a node do this now. None: it may not. `now`: seconds since the epoch."""
        held = self._delegations.get(PeerId(node))
        said = None if held is None else held.document
        if not isinstance(said, DelegationDocument) or duty not in said.may:
            return None
        return held if not said.expires or now < said.expires else None

    def latest_of(self, node: str) -> int:
        """Return when the delegation of a node was issued, seconds since the epoch; 0: it has none."""
        held = self._delegations.get(PeerId(node))
        return 0 if held is None else _age(held)[0]

    def may(self, key: str, duty: Duty, now: float) -> bool:
        """Return whether a key may sign this now: the operator's, or a delegated one."""
        return key == self.operator or self.delegation_of(key, duty, now) is not None

    def signers(self, duty: Duty, now: float) -> list[str]:
        """Return the keys that may sign this now."""
        nodes = [str(node) for node in self._delegations if self.delegation_of(node, duty, now) is not None]
        return [self.operator, *nodes]

    @property
    def nodes(self) -> frozenset[PeerId]:
        """The nodes that the operator trusts with something."""
        said = (paper.document for paper in self._delegations.values())
        return frozenset(PeerId(one.node) for one in said if isinstance(one, DelegationDocument) and one.may)

    def add(self, paper: Paper) -> bool:
        """Take a checked paper; whether it is new and counts."""
        match paper.document:
            case DelegationDocument():
                new = self._add_delegation(paper, paper.document)
            case StartDocument():
                new = self.start is None or self._rank(paper) < self._rank(self.start)
                self.start = paper if new else self.start
            case DigestDocument():
                new = self._add_digest(paper)
        self.taken += new
        return new

    def disputes(self, paper: Paper) -> str:
        """Return what a person should know of a second start beside the one held, for a person. Empty: nothing."""
        if self.start is None or not isinstance(paper.document, StartDocument):
            return ""
        held, other = _started(self.start), paper.document.start
        if held == other:
            return ""
        holds = min(self.start, paper, key=self._rank)
        return f"two signed starts of the run, {held:.1f} and {other:.1f}: the start {_started(holds):.1f} holds"

    def _rank(self, start: Paper) -> tuple[bool, float, bytes]:
        """The least one holds."""
        return start.delegation is not None, _started(start), start.digest

    def _add_delegation(self, paper: Paper, said: DelegationDocument) -> bool:
        held = self._delegations.get(PeerId(said.node))
        if held is not None and _age(held) >= _age(paper):
            return False
        self._delegations[PeerId(said.node)] = paper
        if len(self._delegations) <= MAX_DELEGATIONS:
            return True
        oldest = min(self._delegations, key=lambda node: _age(self._delegations[node]))
        del self._delegations[oldest]
        return oldest != said.node

    def _add_digest(self, paper: Paper) -> bool:
        if paper in self._digests:
            return False
        kept = sorted([*self._digests, paper], key=_of_round, reverse=True)[:MAX_DIGESTS]
        new = paper in kept
        self._digests = kept
        return new

    def held(self) -> list[bytes]:
        """Return the digests of all papers here: what a peer says that asks for others."""
        return [paper.digest for paper in self]

    def lacking(self, held: Collection[bytes]) -> list[bytes]:
        """Return the papers, as lines, that one who holds these lacks."""
        return [paper.line for paper in self if paper.digest not in held]

    def open(self, line: bytes) -> Paper:
        """Read and check a paper. Raises BadPayload as `open_paper`."""
        return open_paper(line, self.run_id, self.operator)

    def sign_start(self, key: Identity, start: float, now: float) -> Paper:
        """Sign when round 0 begins; the caller's key may do so. Raises BadPayload `paper_delegation` if not."""
        document = StartDocument(run=self.run_id.hex(), by=key.peer_id, start=start)
        return self._signed(document, key, "start", now)

    def sign_digest(self, key: Identity, round_: int, digest: bytes, now: float) -> Paper:
        """Sign what the run's state was in a round; the caller's key may do so. Raises BadPayload `paper_delegation` if
        not."""
        document = DigestDocument(run=self.run_id.hex(), by=key.peer_id, round=round_, digest=digest.hex())
        return self._signed(document, key, "digests", now)

    def _signed(self, document: StartDocument | DigestDocument, key: Identity, duty: Duty, now: float) -> Paper:
        delegation = None if key.peer_id == self.operator else self.delegation_of(key.peer_id, duty, now)
        return self.open(sign_paper(document, key, delegation).line)


def _started(paper: Paper) -> float:
    assert isinstance(paper.document, StartDocument)
    return paper.document.start


def _age(paper: Paper) -> tuple[int, bytes]:
    """The greater one is the later one."""
    assert isinstance(paper.document, DelegationDocument)
    return paper.document.issued, paper.digest


def _of_round(paper: Paper) -> tuple[int, bytes]:
    assert isinstance(paper.document, DigestDocument)
    return paper.document.round, paper.digest


def beside(manifest: Path) -> Path:
    """Return the path of the operator's delegations: `run.toml` to `run.delegations`."""
    return manifest.with_suffix(".delegations")


def keep(path: Path, shelf: PaperShelf) -> None:
    """Write the file completely or not at all. Raises HomeUnusable."""
    write_whole(path, b"".join(paper.line + b"\n" for paper in shelf))


def load(path: Path, shelf: PaperShelf) -> list[Paper]:
    """Add the papers of a file, and return the new ones. A missing file holds none.

    Raises ManifestError, naming the line, when one does not check. Those before it are added."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ManifestError(f"cannot read {path}: {error.strerror}", "Make it readable.") from error
    if len(raw) > MAX_FILE:
        raise ManifestError(f"{path} is longer than all papers of a run", "Restore the file from a copy.")
    added = []
    for number, line in enumerate(raw.splitlines(), 1):
        try:
            paper = shelf.open(line)
        except BadPayload as bad:
            raise ManifestError(f"{path}, line {number}: {bad.reason}", "Restore the file from a copy.") from None
        if shelf.add(paper):
            added.append(paper)
    return added
