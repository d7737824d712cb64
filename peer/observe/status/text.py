"""Renders the status as text: the tables of `peer status`, and the status line for logs and simple terminals. Pure
functions of the status and the time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from peer.clock.local_time import local_time
from peer.observe.formatting import amount, duration, harmless, loss_words, participation
from peer.observe.line_bytes import LineBytes
from peer.observe.progress import wait_numbers, worth_showing
from peer.observe.status.columns import Row, ago, ahead, counted, group, short, shortened
from peer.observe.status.value import (
    BudgetStatus,
    DaemonStatus,
    KnownFact,
    MachineStatus,
    ManifestStatus,
    NoticeSeverity,
    PauseStatus,
    PeerStatus,
    RoundsStatus,
    TrainingStatus,
)
from peer.observe.totals import Ledger

PEERS_SHOWN = 8
DATA = {
    "stdlib": "Python's standard library, as it is on each machine",
    "text": "each volunteer's own texts",
    "tokens": "token shards of the run",
}
ANSWERS = {True: "yes", False: "no", None: "not known yet"}
WHEN = {"day": "today", "month": "this month"}


def status_text(status: DaemonStatus, now: float) -> str:
    """Return the status in at most 80 columns. `now`: seconds since the epoch. Sections that the daemon does not have
    yet are left out."""
    name = harmless(status.run or status.run_id[:16])
    role = " (the operator's node)" if status.role == "bootstrap" else ""
    lines = [f"{name}: {status.status}, up {duration(status.uptime_s)}{role}"]
    for title, rows in (
        ("Now", _now(status)),
        ("Run", _run(status, now)),
        ("Training", _training(status.training)),
        ("Exchanges", _exchanges(status.progress)),
        ("Others", _others(status)),
        ("Line", _line(status)),
        ("This machine", _machine(status)),
        ("Agreed to", _agreed(status)),
        ("Worth a look", _notices(status, NoticeSeverity.WARNING)),
    ):
        lines += group(title, rows)
    return "\n".join(lines)


def status_line(status: DaemonStatus) -> str:
    """Return the status as one line. Of the notices it contains the serious ones only."""
    parts = [f"{status.status}: {status.phase if status.leaving is None else status.leaving.told}"]
    if (progress := status.progress) is not None:
        due = progress.next_due_in_s
        parts.append(f"round {progress.round}" + (f" (due in {due:.0f} s)" if due is not None and due > 0 else ""))
    if (training := status.training) is not None:
        loss = "no loss yet" if training.loss is None else f"loss {loss_words(training.loss)}"
        parts.append(f"step {training.steps}, {loss}, {training.tokens_per_s:.0f} tokens/s")
        if training.val_loss is not None:
            round_, nats, _ = training.val_loss
            parts.append(f"hold-out {loss_words(nats)} (round {round_})")
    if status.peers is not None:
        parts.append(f"{sum(peer.status == 'training' for peer in status.peers)} other peers train")
    if progress is not None and progress.last_outcome:
        whom = progress.last_partner
        with_whom = f" with {whom if ' ' in whom else whom[-6:]}" if whom else ""
        parts.append(f"last round {progress.last_outcome}{with_whom}")
    if (membership := status.membership) is not None and membership.cut_off_s is None:
        counts = {"suspected": membership.suspected_count, "not answering anybody": membership.out_count}
        parts += [f"{count} {what}" for what, count in counts.items() if count]
    parts += [
        notice.brief or f"{notice.about}: {notice.sentence}"
        for notice in status.notices
        if notice.severity is NoticeSeverity.SERIOUS and notice.sentence not in status.phase
    ]
    return " · ".join(parts)


def _now(status: DaemonStatus) -> Iterator[Row]:
    if status.leaving is not None:
        yield "leaving", f"{status.leaving.told}; begun {ago(status.leaving.since_s)}"
    elif status.phase != status.status and not status.paused_now:
        yield "doing", shortened(status.phase)
    if worth_showing(status.wait):
        yield "waiting", f"{status.wait.name}: {wait_numbers(status.wait)}"
    yield from _notices(status, NoticeSeverity.SERIOUS)
    if status.paused is not None:
        yield from pause_rows(status.paused)


def pause_rows(paused: PauseStatus) -> Iterator[Row]:
    """Return a row for quiet hours and for each `--when` condition, whether it pauses training at the moment or not."""
    if paused.quiet_hours:
        yield "quiet hours", f"every day {paused.quiet_hours}"
    for name, condition in paused.conditions.items():
        yield name, f"{ANSWERS[condition.value]}: {condition.why}"


def _notices(status: DaemonStatus, severity: NoticeSeverity) -> Iterator[Row]:
    for notice in status.notices:
        if notice.severity is severity:
            yield short(notice.about), notice.text


def _run(status: DaemonStatus, now: float) -> Iterator[Row]:
    yield "id", status.run_id[:16]
    if (manifest := status.manifest) is not None:
        yield from _of_manifest(manifest, status.progress, now)
    if (admission := status.admission) is not None:
        until = f"; your invitation holds until {admission.until}" if admission.until else ""
        yield "admission", f"invited peers only{until}" if admission.kind == "invited" else "open to all"
    if status.amendments:
        last = status.amended[-1] if status.amended else ""
        yield "amended", f"{counted(status.amendments, 'time')} by the operator; last: {last}"
    if status.kept is not None:
        yield "for joiners", status.kept.why or "the run's first state"


def _of_manifest(manifest: ManifestStatus, progress: RoundsStatus | None, now: float) -> Iterator[Row]:
    about, ends = manifest.about, manifest.ends_at
    yield "model", f"{about.model}, {manifest.parameters:,} parameters"
    yield "data", DATA.get(about.data, "")
    every = duration(about.sync_every) if about.clock == "seconds" else f"{about.sync_every:,.0f} inner steps"
    yield "method", f"{about.preset}, an exchange every {every}"
    yield "rounds", _rounds_of(manifest.total_rounds, progress)
    if ends:
        yield "ends", f"{ahead(ends - now)}, at {local_time(ends)}" if ends > now else f"it ended {ago(now - ends)}"


def _rounds_of(total: int | None, progress: RoundsStatus | None) -> str:
    if progress is None:
        return f"{total:,} in all" if total else ""
    due = progress.next_due_in_s
    of = f" of {total:,}" if total else ""
    return f"now in {progress.round:,}{of}" + (f", due {ahead(due)}" if due is not None and due > 0 else "")


def _training(training: TrainingStatus | None) -> Iterator[Row]:
    if training is None:
        return
    yield "steps", f"{training.steps:,}, with {training.tokens:,} tokens"
    yield "speed", f"{training.tokens_per_s:,.0f} tokens/s"
    yield "loss", "none yet" if training.loss is None else loss_words(training.loss)
    yield "hold-out", hold_out(training)
    trained, waited = duration(training.seconds_training), duration(training.seconds_waiting)
    yield "logged", ", ".join(f"{name} {value:.4g}" for name, value in (training.logged or {}).items())
    yield "time", f"{trained} of training, {waited} of waiting"
    yield "waits for", training.trainer_waits
    yield "work", _work(training.ledger)


def hold_out(training: TrainingStatus) -> str:
    """Return the loss of the latest evaluation with its round, as text."""
    if training.val_loss is None:
        return "not evaluated yet"
    round_, nats, bits = training.val_loss
    return f"{loss_words(nats, bits)}, at round {round_:,}"


def _work(ledger: Ledger) -> str:
    if not (processed := ledger.processed):
        return ""
    parts = (
        f"{ledger.applied / processed:.0%} is in the model, "
        f"{ledger.outstanding / processed:.0%} waits for the next outer step"
    )
    return parts + (f", {ledger.dropped / processed:.1%} was dropped" if ledger.dropped else "")


def _exchanges(progress: RoundsStatus | None) -> Iterator[Row]:
    if progress is None:
        return
    yield "last round", _last_round(progress)
    yield "so far", participation(progress.rounds)
    if others := {name: count for name, count in progress.paths.items() if name != "direct"}:
        direct = progress.paths.get("direct", 0)
        yield "paths", ", ".join(f"{count:,} {name}" for name, count in {"direct": direct, **others}.items())
    if (params := progress.partner_params) is not None:
        counts = {
            "taken": params.taken,
            "clipped": params.clipped,
            "refused": params.refused,
            "unchecked": params.unchecked,
        }
        parts = [f"{count:,} {name}" for name, count in counts.items() if count]
        yield "params", ", ".join(parts) and f"of partners, {', '.join(parts)}"
    if progress.receipts is not None:
        yield "receipts", f"{progress.receipts.kept:,} signed by partners: `peer contribution show`"


def _last_round(progress: RoundsStatus) -> str:
    if not progress.last_outcome:
        return "none yet"
    whom = progress.last_partner
    if not whom:
        return progress.last_outcome
    return f"{progress.last_outcome} with {short(whom)} in {_seconds(progress.last_seconds)}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else duration(seconds)


def _others(status: DaemonStatus) -> Iterator[Row]:
    if peers := status.peers:
        yield "peers", peers_line(peers)
        for peer in peers[:PEERS_SHOWN]:
            yield short(peer.peer_id), _peer(peer)
        if len(peers) > PEERS_SHOWN:
            yield "", f"and {len(peers) - PEERS_SHOWN:,} more: `peer status --ids`"
    elif peers is not None:
        yield "peers", "no other is known: this one trains alone, and goes on looking"
    yield "reachable", answer(status.reachable)
    if status.relays:
        yield "relays", f"others reach this peer over {', '.join(short(one.peer_id) for one in status.relays)}"
    if state := status.directory.state:
        yield "directory", f"{state}, {counted(status.directory.neighbours, 'neighbour')}"


def peers_line(peers: Sequence[PeerStatus]) -> str:
    """Return the numbers of peers: `2 others known, 1 training, 2 can be dialled`."""
    train, dialled = sum(peer.status == "training" for peer in peers), sum(peer.reachable for peer in peers)
    return f"{counted(len(peers), 'other')} known, {train:,} training, {dialled:,} can be dialled"


def answer(fact: KnownFact) -> str:
    """Return `yes`, `no` or `not known yet` with the reason. Empty: there is no reason."""
    return f"{ANSWERS[fact.value]}: {fact.why}" if fact.why else ""


def _peer(peer: PeerStatus) -> str:
    """Return a peer as one line: its status, whether it may be a partner, and the path to it."""
    choice, _, why = peer.pairs.partition(": ")
    named = {"yes": "may be a partner", "no": "no partner", "last": "asked last"}.get(choice, choice)
    why = "" if why == f"it is {peer.status}" else why
    path = f", {peer.path.path} path" if peer.path.path else ""
    return f"{peer.status}, round {peer.round:,}; {named}{f': {why}' if why else ''}{path}"


def _line(status: DaemonStatus) -> Iterator[Row]:
    for name, payload, control, cap in (
        ("sent", status.bytes_sent, status.control_bytes.sent, status.caps.sent),
        ("received", status.bytes_received, status.control_bytes.received, status.caps.received),
    ):
        messages = sum(control.values())
        beside = f" of payload, {amount(messages, 'bytes')} of control messages" if messages else " of payload"
        capped = "no cap" if cap is None else f"at most {amount(cap, 'bytes')}/s"
        yield name, f"{amount(payload, 'bytes')}{beside}, {capped}"
    if status.line_bytes is not None:
        yield "on the line", _on_the_line(status.line_bytes)
    if status.budget is not None:
        yield "budget", budget_line(status.budget)
    if status.port_mapping.value:
        yield "router", status.port_mapping.why
    if (relaying := status.relaying).reservations:
        carried = f"{counted(relaying.reservations, 'peer')}, {amount(relaying.bytes, 'bytes')} so far"
        yield "relays for", f"{carried}, at most {amount(relaying.rate, 'bytes')}/s"


def _on_the_line(line: LineBytes) -> str:
    """Return all bytes sent and received, with the overhead of connections."""
    how = "measured by the kernel" if line.measured else "estimated from the above"
    return f"{amount(line.sent, 'bytes')} sent, {amount(line.received, 'bytes')} received in all, {how}"


def budget_line(budget: BudgetStatus) -> str:
    """Return the used part of each upload budget. Empty: there is no budget."""
    parts = []
    for period, limit in budget.limit.items():
        if limit:
            kept = budget.kept_back.get(period)
            back = "" if kept is None else f", {amount(kept, 'bytes')} kept back"
            used = amount(budget.used.get(period, 0), "bytes")
            parts.append(f"{used} of {amount(limit, 'bytes')} {WHEN.get(period, period)}{back}")
    return "; ".join(parts)


def _machine(status: DaemonStatus) -> Iterator[Row]:
    yield "peer id", status.peer_id
    for address in status.addresses:
        yield "address", f"{address.partition('/p2p/')[0]}"
    if status.addresses:
        yield "ticket", "`peer ticket new` makes one with these addresses"
    yield "log", status.log
    yield "page", status.page
    if (machine := status.machine) is not None:
        yield "joined in", duration(machine.joined_in_s) + _waited(machine) if machine.joined_in_s else ""
        yield "micro-batch", machine.micro_batch
    if correction := status.clock_correction_s:
        off = f"{abs(correction):.1f} s {'behind' if correction > 0 else 'ahead of'} the others, corrected"
        yield "clock", off if abs(correction) >= 0.1 else "right within 0.1 s"
    yield "signing key", status.operators_key or ""


def _waited(machine: MachineStatus) -> str:
    waited = machine.waited_for_you_s
    return f", beside {duration(waited)} of waiting for you" if waited >= 1 else ""


def _agreed(status: DaemonStatus) -> Iterator[Row]:
    """Return the terms of the contract that the volunteer agreed to."""
    yield from () if status.contract is None else status.contract.terms
