"""Writes the hash chain of receipts that partners have signed for this peer. Keeps in memory only the end of the chain
and a few receipts to show, however long the chain is.

On failure: a receipt that cannot be written is lost, and the chain continues without it. A chain that was changed from
outside is renamed, and a new chain begins."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from peer.errors import HomeUnusable
from peer.observe import events
from peer.ports.receipt_store import ReceiptStore
from peer.ports.signer import Signer
from peer.protocol.messages import PeerId, RunId
from peer.protocol.pair.receipt import MAX_SHOWN, ShownReceipt
from peer.protocol.pair.receipt_chain import (
    BrokenChain,
    ChainCheck,
    Countersigned,
    entry_record,
    hash_of,
    head_record,
    link_of,
    receipt_in,
)

RECENT = 256
"""Number of newest receipts whose rounds are remembered, so that no round is written twice."""


class ReceiptLog:
    """The chain of receipts. `run_id` and `me` identify the chain, `signer` signs its entries, and `store` keeps them.
    One task owns it."""

    def __init__(
        self, run_id: RunId, me: PeerId, signer: Signer, store: ReceiptStore, emit: Callable[[events.Event], None]
    ) -> None:
        """Read the stored chain. Never raises for its content; see `_begin_anew`."""
        self.run_id = run_id
        self.me = me
        self.signer = signer
        self.entries = 0
        self._store = store
        self._emit = emit
        self._head = b""
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._shown: OrderedDict[PeerId, ShownReceipt] = OrderedDict()
        try:
            self._read()
        except (HomeUnusable, ValueError, BrokenChain) as error:
            self._begin_anew(str(error))

    def append(self, receipt: Countersigned) -> bool:
        """Append a receipt. Return whether it is written."""
        if receipt.own_statement.key.round in self._recent:
            return False
        try:
            if not self._head:
                self._append(head_record(self.run_id, self.me, self.signer.sign))
            self._append(entry_record(self._head, receipt, self.signer.sign))
        except HomeUnusable as error:
            self._emit(events.CheckpointFailed(reason=f"a receipt was not kept: {error.found}"))
            return False
        self._remember(receipt)
        return True

    def shown(self) -> list[ShownReceipt]:
        """Return the newest receipts of accepted payloads, one of each signer."""
        return list(self._shown.values())

    def _append(self, record: bytes) -> None:
        self._store.append(record)
        self._head = hash_of(record)

    def _remember(self, receipt: Countersigned) -> None:
        statement = receipt.statement
        self.entries += 1
        self._recent.append(statement.key.round)
        if statement.opinion.accepted:
            self._shown[statement.signer] = ShownReceipt(statement, receipt.signature)
            self._shown.move_to_end(statement.signer)
            if len(self._shown) > MAX_SHOWN:
                self._shown.popitem(last=False)

    def _read(self) -> None:
        """Find the end of the chain, and verify its newest part.

        Older entries were verified when they were written; verifying a long chain again would delay the start. Raises
        HomeUnusable, BrokenChain or ValueError."""
        records = self._store.read()
        if not (first := next(records, b"")):
            return
        check = ChainCheck(self.signer.verify)
        check.take(first)
        if (check.run_id, check.owner) != (self.run_id, self.me):
            raise BrokenChain(0, "it is of another run or another owner")
        before, count, newest = check.head, 0, deque[bytes](maxlen=RECENT)
        for record in records:
            newest.append(record)
            count += 1
        for at, record in enumerate(newest, count - len(newest) + 1):
            if link_of(record) != before and (at == 1 or record is not newest[0]):
                raise BrokenChain(at, "it does not follow the record before it")
            self._remember(receipt_in(record))
            before = hash_of(record)
        self._head, self.entries = before, count

    def _begin_anew(self, why: str) -> None:
        """Set the damaged chain aside, and begin a new one."""
        self.entries, self._head = 0, b""
        self._recent.clear()
        self._shown.clear()
        told = f"the receipts are damaged, a new chain begins: {why}"
        try:
            self._store.set_aside()
        except HomeUnusable as error:
            told = f"{told}; {error.found}"
        self._emit(events.CheckpointFailed(reason=told))
