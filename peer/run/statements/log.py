"""The statements of one run that a peer holds, and what follows from them.

A paper that a node signed is valid as long as the newest delegation of that node allows such a paper, whatever
delegation the paper carries. A delegation that revokes a duty therefore also invalidates papers that were signed before
it, whether they arrive before or after it. The result does not depend on the order of arrival: peers that hold the same
papers reach the same policy. Of two amendments with one number the first to arrive holds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import Any, TypeVar, cast

from peer.codes import Code
from peer.errors import BadPayload
from peer.identity import Identity
from peer.protocol.messages import MAX_ROUND, PeerId, RunId
from peer.protocol.policy.amendments import Amendment, Change, RunPolicy, policy_at
from peer.protocol.swarm.claimed_round import furthest_round
from peer.run.manifest import Manifest
from peer.run.resolve import resolve
from peer.run.statements.kinds import (
    AMENDMENT,
    PAPERS,
    AmendmentDocument,
    DelegationDocument,
    DigestDocument,
    Document,
    Duty,
    PaperDocument,
    StartDocument,
)
from peer.run.statements.statement import Statement, open_document, open_line, sign

P = TypeVar("P", bound=PaperDocument)


class StatementLog:
    """The statements of one run: adds them in any order, and answers which hold."""

    def __init__(
        self,
        run_id: RunId,
        operator: str,
        *,
        manifest_start: float = 0.0,
        wants_start: bool = False,
        in_steps: bool = False,
        rounds: int = MAX_ROUND,
        furthest: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`operator`: peer id of the key that the manifest names. `manifest_start`: start of round 0 by the manifest,
        seconds since the epoch. 0: it gives none. `wants_start`: whether the run begins by a signed start. `in_steps`:
        whether rounds are counted in inner steps. `rounds`: number of rounds. An amendment of a later round never takes
        effect. `furthest`: returns the latest round that any peer can be in now. None: not known. A digest of a later
        round is refused, and can be offered again."""
        self.run_id = run_id
        self.operator = PeerId(operator)
        self.manifest_start = manifest_start
        self.wants_start = wants_start
        self._in_steps = in_steps
        self._last = rounds - 1
        self._furthest = furthest
        self.new_count = 0
        """Number of statements added since this object was created."""
        self.new: list[Statement[Document]] = []
        """Statements that arrived by themselves, not as the delegation of another one. The reader may clear it."""
        self.dropped: list[Statement[PaperDocument]] = []
        """Papers that a newer delegation of their signer revoked. The reader may clear it."""
        self.chain: list[Statement[AmendmentDocument]] = []
        self.amendments: list[Amendment] = []
        """The changes of the amendments in `chain`."""
        self._held: dict[type[PaperDocument], dict[Hashable, Statement[PaperDocument]]] = {kind: {} for kind in PAPERS}
        """Papers, by kind and place."""
        self._cached_policy: tuple[int, int, RunPolicy] = (-1, -1, RunPolicy())

    @classmethod
    def of(cls, run_id: RunId, manifest: Manifest, now: Callable[[], float]) -> StatementLog:
        """Create the empty log of a run, which refuses digests of rounds that cannot have been reached. `now`: returns
        the run time.

        No round is past the manifest's last one. With a clock in seconds none is past the next one, and none past round
        0 while no signed start is known."""
        method = resolve(manifest.sync)

        def furthest() -> int:
            most = furthest_round(method.round_clock(manifest.start or log.start_time), now())
            if most is None:
                most = 0 if log.wants_start else manifest.rounds
            return min(most, manifest.rounds)

        log = cls(
            run_id,
            manifest.operator,
            manifest_start=manifest.start,
            wants_start=wants_start(manifest),
            in_steps=manifest.sync.clock == "steps",
            rounds=manifest.rounds,
            furthest=furthest,
        )
        return log

    def __iter__(self) -> Iterator[Statement[Document]]:
        """Yield all statements: delegations, then the papers that they allow, then the amendments."""
        yield from self.papers
        yield from self.chain

    @property
    def papers(self) -> list[Statement[PaperDocument]]:
        """The papers held, delegations first, and within a kind the best rank first."""
        return [paper for kind in PAPERS for paper in self._of(kind)]

    def _of(self, kind: type[P]) -> list[Statement[P]]:
        return cast("list[Statement[P]]", sorted(self._held[kind].values(), key=self._rank))

    def _rank(self, paper: Statement[PaperDocument]) -> tuple[float, ...]:
        return paper.document.rank(self.operator, int.from_bytes(paper.digest))

    # -- policy, from the amendments -----------------------------------------------------------------------------------

    @property
    def head(self) -> bytes:
        """Digest of the last amendment, or the run id if there is none. The next amendment has to name it."""
        return self.chain[-1].digest if self.chain else bytes(self.run_id)

    def policy(self, round_: int) -> RunPolicy:
        """Return the policy of a round by the amendments known here. The operator's own key is never banned, because
        peers would receive no further amendment. The last result is cached, as every call of another peer needs it."""
        known = len(self.amendments)
        if self._cached_policy[:2] != (round_, known):
            now = policy_at(self.amendments, min(round_, self._last), in_steps=self._in_steps)
            self._cached_policy = round_, known, now.without(self.operator)
        return self._cached_policy[2]

    # -- start, digests and delegations, from the papers ---------------------------------------------------------------

    @property
    def start(self) -> Statement[StartDocument] | None:
        """The signed start that holds. None: there is none."""
        return next(iter(self._of(StartDocument)), None)

    @property
    def start_time(self) -> float:
        """Start of round 0 by the signed start, seconds since the epoch. 0: there is none."""
        return 0.0 if (held := self.start) is None else held.document.start

    def awaited_start(self) -> float:
        """Return `start_time`, or 0 in a run that does not begin by a signed start."""
        return self.start_time if self.wants_start else 0.0

    @property
    def awaits_start(self) -> bool:
        """Whether the run begins by a signed start and none is held yet."""
        return self.wants_start and self.start is None

    @property
    def start_is_final(self) -> bool:
        """Whether the operator's own key signed the start that holds."""
        return (held := self.start) is not None and held.document.by == self.operator

    def digests(self, now: float) -> list[DigestDocument]:
        """Return the digests of the run's state, newest round first, whose signers may still sign digests. `now`:
        seconds since the epoch."""
        held = [paper.document for paper in self._of(DigestDocument)]
        return [document for document in held if self.may(document.by, "digests", now) and self._reached(document)]

    def newest_delegation(self, node: str) -> DelegationDocument | None:
        """Return the operator's latest delegation to a node. None: there is none."""
        held = self._delegation(node)
        return None if held is None else held.document

    def _delegation(self, node: str) -> Statement[DelegationDocument] | None:
        return cast("Statement[DelegationDocument] | None", self._held[DelegationDocument].get(node))

    def delegation_of(self, node: str, duty: Duty, now: float) -> Statement[DelegationDocument] | None:
        """Return the delegation that allows a node this duty now. None: the node may not. `now`: seconds since the
        epoch."""
        held = self._delegation(node)
        return held if held is not None and duty in held.document.may and held.document.holds(now) else None

    def may(self, key: str, duty: Duty, now: float) -> bool:
        """Return whether a key may sign this now: the operator's key, or a delegated one."""
        return key == self.operator or self.delegation_of(key, duty, now) is not None

    def signers(self, duty: Duty, now: float) -> list[str]:
        """Return the keys that may sign this now."""
        return [self.operator, *(node for node in self.named if self.delegation_of(node, duty, now) is not None)]

    @property
    def named(self) -> list[PeerId]:
        """The nodes for which a delegation is held, including those that lost all duties."""
        return sorted(PeerId(paper.document.node) for paper in self._of(DelegationDocument))

    def nodes(self, now: float, named: Iterable[PeerId] = ()) -> frozenset[PeerId]:
        """Return the operator's nodes: those with a valid delegation, and those in `named`, as from a ticket. A node
        that lost all duties is left out even if it is named."""
        said = {PeerId(one.document.node): one.document for one in self._of(DelegationDocument)}
        trusted = {node for node, one in said.items() if one.may and one.holds(now)}
        return frozenset(trusted | {node for node in named if node not in said or said[node].may})

    # -- adding --------------------------------------------------------------------------------------------------------

    def open(self, line: bytes) -> Statement[Document]:
        """Parse a statement and check that it counts here. Raises BadPayload as `open_line` and `ensure_counts`."""
        statement = open_line(line, self.run_id, self.operator)
        self.ensure_counts(statement)
        return statement

    def open_amendment(self, raw: bytes, signature: bytes) -> Statement[AmendmentDocument]:
        """As `open`, for an amendment given as document and signature."""
        statement = open_document(AMENDMENT, raw, signature, self.run_id, self.operator)
        self.ensure_counts(statement)
        return statement

    def ensure_counts(self, statement: Statement[Document]) -> None:
        """Raise BadPayload for a statement that is not valid given what is held here.

        `amendment_fork`: another amendment of this number is held. `amendment_order`: the number leaves a gap, or the
        predecessor differs. `paper_delegation`: the newest delegation does not allow it. `paper_round`: the round
        cannot have been reached yet."""
        if (why := self._refusal(statement)) is not None:
            raise BadPayload(*why)

    def add(self, statement: Statement[Document]) -> bool:
        """Add an opened statement, and the delegation that it carries. Return whether it is new and valid. Papers that
        the delegation revokes are removed.

        An amendment may take effect in an earlier round than its predecessors, because otherwise one with a far round
        would bind the operator for ever. Earlier versions refuse such an amendment and all that follow it."""
        if statement.delegation is not None:
            self.new_count += self._hold(statement.delegation)
        if self._refusal(statement) is not None:
            return False
        if isinstance(statement.document, PaperDocument):
            new = self._hold(cast("Statement[PaperDocument]", statement))
        else:
            new = self._append(cast("Statement[AmendmentDocument]", statement))
        if new:
            self.new_count += 1
            self.new.append(statement)
        return new

    def disputes(self, statement: Statement[Document]) -> str:
        """Return a sentence about the conflict if the statement is a start that differs from the start held here.
        Empty: there is no conflict."""
        held, other = self.start, statement.document
        if held is None or not isinstance(other, StartDocument) or held.document.start == other.start:
            return ""
        ours = held.document.start
        holds = min(held, cast("Statement[StartDocument]", statement), key=self._rank).document.start
        return f"two signed starts of the run, {ours:.1f} and {other.start:.1f}: the start {holds:.1f} holds"

    def _refusal(self, statement: Statement[Document]) -> tuple[Code, str] | None:
        """Return why a statement is not valid given what is held here: code and sentence. None: it is valid."""
        match statement.document:
            case AmendmentDocument() as document:
                return self._out_of_order(document, statement.raw)
            case DigestDocument() as document if not self._reached(document):
                return Code.PAPER_ROUND, f"a digest of round {document.round}, which nobody can have reached yet"
            case PaperDocument(duty=duty) as document if duty is not None and document.by != self.operator:
                said = self._newest(document.by, statement.delegation)
                if said is None:
                    why = f"the operator named {DelegationDocument.most} other nodes after {document.by}"
                    return Code.PAPER_DELEGATION, why
                if why := document.exceeds(said):
                    return Code.PAPER_DELEGATION, f"{why}, by the operator's latest word"
        return None

    def _out_of_order(self, document: AmendmentDocument, raw: bytes) -> tuple[Code, str] | None:
        number, held = document.number, len(self.chain)
        if number <= held:
            if self.chain[number - 1].raw == raw:
                return None
            why = f"the operator signed two amendments number {number}, and the first one to arrive holds here"
            return Code.AMENDMENT_FORK, why
        if number != held + 1 or bytes.fromhex(document.previous) != self.head:
            return Code.AMENDMENT_ORDER, f"amendment {number} does not follow on number {held} held here"
        return None

    def _append(self, statement: Statement[AmendmentDocument]) -> bool:
        if statement.document.number <= len(self.chain):
            return False
        self.chain.append(statement)
        self.amendments.append(statement.document.amendment())
        return True

    def _newest(self, node: str, carried: Statement[DelegationDocument] | None) -> DelegationDocument | None:
        """Return the newest delegation of a node: the one held or the one carried by a paper. None: neither would get a
        place here."""
        held = self._delegation(node)
        if held is not None:
            return held.document if carried is None else min(held, carried, key=self._rank).document
        others = self._of(DelegationDocument)
        full = len(others) >= DelegationDocument.most
        if carried is None or (full and self._rank(carried) > self._rank(others[-1])):
            return None
        return carried.document

    def _reached(self, document: DigestDocument) -> bool:
        most = self._furthest()
        return most is None or document.round <= most

    def _hold(self, paper: Statement[PaperDocument]) -> bool:
        """Put a paper into its place if its rank is better than that of the paper there. Return whether it is held and
        new."""
        document, kind = paper.document, type(paper.document)
        held, place, own = self._held[kind], document.place, document.by == self.operator
        if kind.final and not own and any(other.document.by == self.operator for other in held.values()):
            return False
        if place in held and self._rank(held[place]) <= self._rank(paper):
            return False
        if kind.final and own:
            held.clear()
        held[place] = paper
        if len(held) > kind.most:
            del held[self._surplus(held.values()).document.place]
        if kind is DelegationDocument:
            self._drop_what_was_taken_back()
        return held.get(place) is paper

    def _surplus(self, held: Collection[Statement[PaperDocument]]) -> Statement[PaperDocument]:
        """Return the worst paper of the signer with the most papers, so that no signer can fill all places."""
        signed = Counter(paper.document.by for paper in held)
        return max((one for one in held if signed[one.document.by] == max(signed.values())), key=self._rank)

    def _drop_what_was_taken_back(self) -> None:
        for held in self._held.values():
            for place, paper in list(held.items()):
                document = paper.document
                if document.duty is None or document.by == self.operator:
                    continue
                said = self.newest_delegation(document.by)
                if said is None or document.exceeds(said):
                    self.dropped.append(held.pop(place))

    # -- exchange with other peers -------------------------------------------------------------------------------------

    def amendments_after(self, count: int, head: bytes) -> list[Statement[AmendmentDocument]]:
        """Return the amendments that another peer lacks. `count`: number of amendments that it holds. `head`: digest of
        the last of these. If our amendment of that number differs, it is included, so that the peer detects that the
        operator signed two."""
        if not 0 < count <= len(self.chain):
            return self.chain[count:]
        same = self.chain[count - 1].digest == head
        return self.chain[count:] if same else self.chain[count - 1 :]

    def paper_digests(self) -> list[bytes]:
        """Return the digests of all papers held, which a request for further papers lists."""
        return [paper.digest for paper in self.papers]

    def papers_beyond(self, held: Collection[bytes]) -> list[bytes]:
        """Return the lines of the papers that are not in `held`."""
        return [paper.line for paper in self.papers if paper.digest not in held]

    # -- signing -------------------------------------------------------------------------------------------------------

    def amend(
        self, operator: Identity, round_: int, change: Change, reason: str, **fields: Any
    ) -> Statement[AmendmentDocument]:
        """Create, sign and add the next amendment. Raises BadPayload when it is invalid."""
        document = {
            "format": 1,
            "run": self.run_id.hex(),
            "number": len(self.chain) + 1,
            "previous": self.head.hex(),
            "round": round_,
            "change": change.value,
            "reason": reason,
            **fields,
        }
        raw = json.dumps(document).encode()
        statement = self.open_amendment(raw, operator.sign(AMENDMENT.domain, raw))
        self.add(statement)
        return statement

    def sign_start(self, key: Identity, start: float, now: float) -> Statement[Document]:
        """Sign the start of round 0 with this key. Raises BadPayload `paper_delegation` when the key may not sign
        it."""
        return self._signed(StartDocument(run=self.run_id.hex(), by=key.peer_id, start=start), key, now)

    def sign_digest(self, key: Identity, round_: int, digest: bytes, now: float) -> Statement[Document]:
        """Sign the digest of the run's state in a round with this key. Raises BadPayload `paper_delegation` when the
        key may not sign it."""
        document = DigestDocument(run=self.run_id.hex(), by=key.peer_id, round=round_, digest=digest.hex())
        return self._signed(document, key, now)

    def _signed(self, document: StartDocument | DigestDocument, key: Identity, now: float) -> Statement[Document]:
        assert document.duty is not None, "a kind that a node may sign"
        delegation = None if key.peer_id == self.operator else self.delegation_of(key.peer_id, document.duty, now)
        return self.open(sign(document, key, delegation).line)


def wants_start(manifest: Manifest) -> bool:
    """Return whether the run begins by a signed start."""
    return manifest.sync.clock == "seconds" and not manifest.start
