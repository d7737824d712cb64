"""The papers of one run that a peer holds.

A paper of a node counts as long as the newest delegation of that node lets it sign such a paper, whatever delegation
the paper carries. So a delegation that takes something back also removes the papers that were signed before, whether
they came before the delegation or come afterwards. Whatever order papers come in, who holds the same papers rules the
same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from peer.codes import Code
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
    refusal_reason,
    sign_paper,
)

PAPERS = "papers.jsonl"
"""File of a run's folder that keeps them."""
MAX_DELEGATIONS = 16
"""Nodes whose delegation is held: the latest that were named, those included from which everything was taken back."""
MAX_STARTS = 4
"""Starts of different nodes that are held, until the operator's own is here."""
MAX_DIGESTS = 4
"""Digests that are held: of the newest rounds, and no more of one signer than of another that has as many."""
MAX_HELD = MAX_DELEGATIONS + MAX_STARTS + MAX_DIGESTS
MAX_FILE = MAX_HELD * (MAX_LINE + 1)


class PaperShelf:
    """One run's papers. The operator's own start is final. Without it the earliest of the nodes' starts holds, of two
    that are equal the first by digest."""

    def __init__(self, run_id: RunId, operator: str, furthest: Callable[[], int | None] = lambda: None) -> None:
        """`operator`: peer id of the key that the manifest names. `furthest`: returns the furthest round that anybody
        can be in now; None: that is not known. A digest of a later round is not taken. Who has it offers it again."""
        self.run_id = run_id
        self.operator = operator
        self._furthest = furthest
        self.taken = 0
        """Papers that were new, since this object was made."""
        self.dropped: list[Paper] = []
        """Papers that counted until a newer delegation of their signer came. The reader may clear it."""
        self._delegations: dict[PeerId, Paper] = {}
        self._starts: list[Paper] = []
        """At most one of each signer, the one that holds first."""
        self._digests: list[Paper] = []

    def __iter__(self) -> Iterator[Paper]:
        """Return them with the delegations first."""
        yield from self._delegations.values()
        yield from self._starts
        yield from self._digests

    @property
    def start(self) -> Paper | None:
        """The start that holds."""
        return self._starts[0] if self._starts else None

    @property
    def start_time(self) -> float:
        """When round 0 began, seconds since the epoch; 0: no paper says."""
        return 0.0 if self.start is None else _started(self.start)

    @property
    def start_is_final(self) -> bool:
        """Whether the operator's own key signed the start."""
        return self.start is not None and self.start.document.by == self.operator

    def digests(self, now: float) -> list[DigestDocument]:
        """Return the digests of the run's state, the newest round first, whose signers may sign some still."""
        held = (paper.document for paper in self._digests if self.may(paper.document.by, "digests", now))
        return [document for document in held if isinstance(document, DigestDocument) and self._reached(document)]

    def newest_delegation(self, node: str) -> DelegationDocument | None:
        """Return the operator's latest word on what a node may sign. None: there is none."""
        held = self._delegations.get(PeerId(node))
        return None if held is None else _delegation(held)

    def delegation_of(self, node: str, duty: Duty, now: float) -> Paper | None:
        """Return what lets a node do this now. None: it may not. `now`: seconds since the epoch."""
        held = self._delegations.get(PeerId(node))
        if held is None or duty not in _delegation(held).may:
            return None
        return held if _holds(_delegation(held), now) else None

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
    def named(self) -> list[PeerId]:
        """The nodes of which a delegation is held, those included from which everything was taken back."""
        return sorted(self._delegations)

    def nodes(self, now: float, named: Iterable[PeerId] = ()) -> frozenset[PeerId]:
        """Return the nodes that the operator trusts with something now, and those `named` elsewhere, as by a ticket.
        A node from which the operator took everything back is not among them, whoever names it."""
        said = {node: _delegation(paper) for node, paper in self._delegations.items()}
        trusted = {node for node, one in said.items() if one.may and _holds(one, now)}
        return frozenset(trusted | {node for node in named if node not in said or said[node].may})

    def add(self, paper: Paper) -> bool:
        """Take a paper that `open_paper` has read, and the delegation that it carries. Return whether it is new and
        counts. Papers that the delegation takes back are removed."""
        if paper.delegation is not None and self._add_delegation(paper.delegation):
            self.taken += 1
        if self._refusal(paper) is not None:
            return False
        match paper.document:
            case DelegationDocument():
                new = self._add_delegation(paper)
            case StartDocument():
                new = self._add_start(paper)
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

    def _refusal(self, paper: Paper) -> tuple[Code, str] | None:
        """Return why a paper does not count by what is held here: a code and a sentence. None: it does."""
        document = paper.document
        if isinstance(document, DelegationDocument):
            return None
        if isinstance(document, DigestDocument) and not self._reached(document):
            return Code.PAPER_ROUND, f"a digest of round {document.round}, which nobody can have reached yet"
        if document.by == self.operator:
            return None
        said = self._newest(document.by, paper.delegation)
        if said is None:
            return Code.PAPER_DELEGATION, f"the operator named {MAX_DELEGATIONS} other nodes after {document.by}"
        why = refusal_reason(document, said)
        return (Code.PAPER_DELEGATION, f"{why}, by the operator's latest word") if why else None

    def _newest(self, node: str, carried: Paper | None) -> DelegationDocument | None:
        """Return the newest delegation of a node: the one held, or the one that a paper carries. None: neither would
        have a place here."""
        held = self._delegations.get(PeerId(node))
        if held is not None:
            return _delegation(held if carried is None else max(held, carried, key=_age))
        full = len(self._delegations) >= MAX_DELEGATIONS
        if carried is None or (full and _age(carried) < min(map(_age, self._delegations.values()))):
            return None
        return _delegation(carried)

    def _reached(self, document: DigestDocument) -> bool:
        most = self._furthest()
        return most is None or document.round <= most

    def _rank(self, start: Paper) -> tuple[bool, float, bytes]:
        """The least one holds."""
        return start.document.by != self.operator, _started(start), start.digest

    def _add_delegation(self, paper: Paper) -> bool:
        said = _delegation(paper)
        held = self._delegations.get(PeerId(said.node))
        if held is not None and _age(held) >= _age(paper):
            return False
        self._delegations[PeerId(said.node)] = paper
        if len(self._delegations) > MAX_DELEGATIONS:
            oldest = min(self._delegations, key=lambda node: _age(self._delegations[node]))
            del self._delegations[oldest]
        self._remove_what_was_taken_back()
        return PeerId(said.node) in self._delegations

    def _remove_what_was_taken_back(self) -> None:
        gone = [paper for paper in (*self._starts, *self._digests) if not self._still_allowed(paper)]
        self.dropped += gone
        self._starts = [paper for paper in self._starts if paper not in gone]
        self._digests = [paper for paper in self._digests if paper not in gone]

    def _still_allowed(self, paper: Paper) -> bool:
        document = paper.document
        assert not isinstance(document, DelegationDocument)
        said = self.newest_delegation(document.by)
        return document.by == self.operator or (said is not None and not refusal_reason(document, said))

    def _add_start(self, paper: Paper) -> bool:
        by = paper.document.by
        if self.start_is_final and by != self.operator:
            return False
        former = next((held for held in self._starts if held.document.by == by), None)
        if former is not None and self._rank(former) <= self._rank(paper):
            return False
        others = [held for held in self._starts if held is not former and by != self.operator]
        self._starts = sorted([*others, paper], key=self._rank)[:MAX_STARTS]
        return paper in self._starts

    def _add_digest(self, paper: Paper) -> bool:
        if any(held.raw == paper.raw for held in self._digests):
            return False
        kept = sorted([*self._digests, paper], key=_of_round, reverse=True)
        while len(kept) > MAX_DIGESTS:
            held = Counter(one.document.by for one in kept)
            crowded = [one for one in kept if held[one.document.by] == max(held.values())]
            kept.remove(crowded[-1])
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
        """Read a paper and check whether it counts here.

        Raises BadPayload as `open_paper`; `paper_delegation` also where the newest delegation does not allow it, and
        `paper_round` for the digest of a round that nobody can have reached."""
        paper = open_paper(line, self.run_id, self.operator)
        if (why := self._refusal(paper)) is not None:
            raise BadPayload(*why)
        return paper

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


def _delegation(paper: Paper) -> DelegationDocument:
    assert isinstance(paper.document, DelegationDocument)
    return paper.document


def _holds(said: DelegationDocument, now: float) -> bool:
    return not said.expires or now < said.expires


def _started(paper: Paper) -> float:
    assert isinstance(paper.document, StartDocument)
    return paper.document.start


def _age(paper: Paper) -> tuple[int, bytes]:
    """The greater one is the later one."""
    return _delegation(paper).issued, paper.digest


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
    """Add the papers of a file, and return the new ones. A missing file holds none. Papers that a later delegation took
    back are passed over: an earlier version kept them.

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
            paper = open_paper(line, shelf.run_id, shelf.operator)
        except BadPayload as bad:
            raise ManifestError(f"{path}, line {number}: {bad.reason}", "Restore the file from a copy.") from None
        if shelf.add(paper):
            added.append(paper)
    return added
