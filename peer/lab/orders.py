"""Orders: the actions that a person requested from a lab command, and whether each was carried out.

`peer swarm --kill 2@45` orders a kill. If the run is over after 40 seconds, no peer is killed, but the report could be
mistaken for that of a swarm that survived a kill. Therefore each kill, join, fault, attack and run length is an
`Order`. The code that carries it out calls `mark_done` or `mark_missed`, and `check_orders` raises if a report has
orders that were not carried out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from peer.errors import OrdersNotCarriedOut


@dataclass(slots=True)
class Order:
    """One requested action. Open until `mark_done` or `mark_missed` is called."""

    text: str
    """The order as on the command line, e.g. `--kill 2@45`."""
    at_s: float | None = None
    """Seconds after the start of training at which it was carried out. None: not carried out, or not yet."""
    missed_reason: str = ""
    """Why it was not carried out. Empty: it was, or it is still open."""

    @property
    def is_done(self) -> bool:
        return self.at_s is not None

    def mark_done(self, at_s: float) -> None:
        """Mark the order as carried out, `at_s` seconds after the start of training."""
        self.at_s, self.missed_reason = round(at_s, 1), ""

    def mark_missed(self, why: str) -> None:
        """Mark the order as not carried out. May follow `mark_done` if the action had no effect. `why`: for people."""
        self.at_s, self.missed_reason = None, why

    def to_json(self) -> dict[str, Any]:
        return {"order": self.text, "carried_out_at_s": self.at_s, "why_not": self.missed_reason or None}


@dataclass(slots=True)
class Orders:
    """All orders of one command."""

    given: list[Order] = field(default_factory=list)

    def add(self, text: str) -> Order:
        """Add an open order and return it."""
        order = Order(text)
        self.given.append(order)
        return order

    def close(self, why: str) -> None:
        """Mark every order that is still open as not carried out, for this reason."""
        for order in self.given:
            if not order.is_done and not order.missed_reason:
                order.mark_missed(why)

    def to_json(self) -> list[dict[str, Any]]:
        return [order.to_json() for order in self.given]


def unmet_lines(orders: Iterable[dict[str, Any]]) -> list[str]:
    """Return a heading and one line for each order of a report that was not carried out. Empty if all were."""
    unmet = [f"  {order['order']}: {order['why_not']}" for order in orders if order["why_not"]]
    return ["not carried out", *unmet] if unmet else []


def check_orders(orders: Sequence[dict[str, Any]]) -> None:
    """Raise OrdersNotCarriedOut if a report has an order that was not carried out."""
    if unmet := [order["order"] for order in orders if order["why_not"]]:
        raise OrdersNotCarriedOut(f"{len(unmet)} of {len(orders)} orders not carried out: {', '.join(unmet)}")
