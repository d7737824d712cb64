"""Orders of a laboratory command: what a person asked to have done, and whether it was done.

`peer swarm --kill 2@45` orders a kill. A run that is over after 40 seconds kills nobody, and its report would be read
as that of a swarm that survived a kill. So every kill, join, fault, attack and length is an `Order`. The code that
carries it out calls `done` or `missed`, and `check` raises for the orders of a report that were not carried out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from peer.errors import OrdersNotCarriedOut


@dataclass(slots=True)
class Order:
    """One thing that was asked for. It is open until `done` or `missed` is called."""

    text: str
    """As on the command line, e.g. `--kill 2@45`."""
    at_s: float | None = None
    """When it was carried out, in seconds after training began. None: not, or not yet."""
    missed_reason: str = ""
    """Why it was not carried out. Empty: it was, or may still be."""

    @property
    def is_done(self) -> bool:
        return self.at_s is not None

    def mark_done(self, at_s: float) -> None:
        """Note that it was carried out."""
        self.at_s, self.missed_reason = round(at_s, 1), ""

    def mark_missed(self, why: str) -> None:
        """Note that it was not carried out, also after `done` when it came to nothing. `why`: for a person."""
        self.at_s, self.missed_reason = None, why

    def to_json(self) -> dict[str, Any]:
        return {"order": self.text, "carried_out_at_s": self.at_s, "why_not": self.missed_reason or None}


@dataclass(slots=True)
class Orders:
    """All orders of one command."""

    given: list[Order] = field(default_factory=list)

    def add(self, text: str) -> Order:
        """Add an open order."""
        order = Order(text)
        self.given.append(order)
        return order

    def close(self, why: str) -> None:
        """Note of every order that is still open why it was not carried out."""
        for order in self.given:
            if not order.is_done and not order.missed_reason:
                order.mark_missed(why)

    def to_json(self) -> list[dict[str, Any]]:
        return [order.to_json() for order in self.given]


def unmet_lines(orders: Iterable[dict[str, Any]]) -> list[str]:
    """Write the orders of a report that were not carried out, one a line. Empty when all were."""
    unmet = [f"  {order['order']}: {order['why_not']}" for order in orders if order["why_not"]]
    return ["not carried out", *unmet] if unmet else []


def check_orders(orders: Sequence[dict[str, Any]]) -> None:
    """Raise OrdersNotCarriedOut when a report has an order that was not carried out."""
    if unmet := [order["order"] for order in orders if order["why_not"]]:
        raise OrdersNotCarriedOut(f"{len(unmet)} of {len(orders)} orders not carried out: {', '.join(unmet)}")
