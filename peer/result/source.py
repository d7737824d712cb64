"""Loads a model from the sources that a user names: a home, a checkpoint folder, or a ticket. Several sources give
their mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from peer.errors import PeerError, SourceError
from peer.ports.console import Say
from peer.result.local import local_model
from peer.result.model import RunModel, SourceRequest, add_state, average_sum
from peer.run.ticket import Ticket, ticket_in
from peer.user_folders import expand_user


def ticket_of(source: str) -> Ticket | None:
    """Return the ticket that a source is or names; None: the source is a folder. Raises TicketError, and SourceError if
    it is neither."""
    if _is_folder(source):
        return None
    if source.startswith("@") or ticket_in(source) is not None:
        return Ticket.named(source)
    raise SourceError(
        f"{source[:200]!r} is neither a folder nor a ticket",
        "Name a home, a checkpoint folder, a ticket (it begins with peersw), or @FILE with one.",
    )


def _is_folder(source: str) -> bool:
    try:
        return expand_user(Path(source)).is_dir()
    except (OSError, ValueError, PeerError):  # longer than a name can be, a NUL, a user without a home directory
        return False


def load_model(sources: Sequence[str], request: SourceRequest, say: Say) -> RunModel:
    """Return the model of a source, or the mean of several sources of one run.

    Raises PeerError for every problem that the user can solve."""
    assert sources
    tickets = [ticket_of(source) for source in sources]
    total: RunModel | None = None
    for source, ticket in zip(sources, tickets, strict=True):
        model = local_model(Path(source), request, say) if ticket is None else _of_ticket(ticket, request, say)
        total = model if total is None else add_state(total, model)
    assert total is not None
    return average_sum(total, len(sources))


def _of_ticket(ticket: Ticket, request: SourceRequest, say: Say) -> RunModel:
    from peer.result.remote.ticket import ticket_model  # imported here because a folder needs no network modules

    return ticket_model(ticket, request, say)
