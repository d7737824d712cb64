"""The report of a local swarm, made from the journals, counters and last checkpoints that its peers left on disk. No
peer's statement about another peer is used, and killed peers count like the others."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from peer.joining.reset import digest_of
from peer.lab.attack.report import AttackReport, excluded, mean_last_loss, newcomers
from peer.lab.localswarm.attendance import Attendance, attendance, recoveries
from peer.lab.localswarm.chaos import FaultRecord
from peer.lab.localswarm.processes import Daemon
from peer.lab.orders import unmet_lines
from peer.lab.sim.faults import Fault
from peer.methods.topology import Topology
from peer.observe.event_codec import read_lines
from peer.observe.events import (
    CaughtUp,
    Evaluated,
    Event,
    Leaving,
    Refounded,
    RoundDue,
    RoundEnded,
    RoundMissed,
    TrainingBegan,
)
from peer.observe.totals import Ledger, ledger, read_totals, rotated_path
from peer.protocol.model.layout import Layout, TensorSpec
from peer.run.home import Home, RunFolder
from peer.run.manifest import SignedManifest
from peer.run.model_layout import layout_for
from peer.run.resolve import resolve
from peer.state.checkpoint import CheckpointStore
from peer.trainer.arena import read_counters
from peer.whole_files import replace_file

COUNTS = {"due": "due", "paired": "exchanged", "solo": "solo", "refused": "refused", "failed": "missed"}
"""Field of the report -> kind of round count in the journal's totals."""


@dataclass(frozen=True, slots=True)
class PeerAccount:
    """One peer's row of the report, and the facts from which the swarm's totals are computed. `book`: its ledger.
    `events`: its journal. `outer`: its final outer_params. `killed_at`: seconds since the epoch."""

    row: dict[str, Any]
    book: Ledger
    events: list[tuple[float, Event]]
    outer: torch.Tensor | None
    killed_at: float | None


def account(
    daemon: Daemon,
    peer_id: str,
    killed_at: float | None,
    signed: SignedManifest,
    began: float,
    tensors: Sequence[TensorSpec] | None = None,
) -> PeerAccount:
    """Read what a peer left in its home. `began`: start of the swarm, in seconds since the epoch. `tensors`: of a
    foreign model."""
    folder = Home(daemon.home).run(signed.run_id)
    layout = layout_for(signed.manifest.model, resolve(signed.manifest.sync), tensors)
    elements = tuple(layout.fragment_elements(f) for f in range(len(layout.fragments)))
    totals, counters = read_totals(folder.journal), read_counters(folder.path, len(elements))
    book = ledger(totals, counters.tokens, counters.base, elements)
    events = journal_events(folder)
    joined = totals.joined_at
    code = daemon.exit_codes[-1] if daemon.exit_codes else None
    losses = [[round_, loss] for round_, loss, _ in totals.val_loss]
    last = last_state_evaluated([event for _, event in events])
    outer = _saved_outer(folder, signed.run_id, layout) if code == 0 else None
    row = {
        "peer_id": peer_id,
        "exit_code": code,
        "killed": killed_at is not None,
        "joined_at_s": None if joined is None else round(joined - began, 3),
        "steps": counters.steps,
        "tokens": counters.tokens,
        "rounds": {name: totals.rounds.get(count, 0) for name, count in COUNTS.items()},
        "bytes_sent": totals.bytes_sent,
        "bytes_received": totals.bytes_received,
        "val_loss": losses,
        "val_loss_first": losses[0][1] if losses else None,
        "val_loss_last": _finite(last.loss) if last is not None else None,
        "val_loss_round": losses[-1][0] if losses else None,
        "val_loss_own": _finite(last.own_loss) if last is not None else None,
        "outer_digest": None if outer is None else digest_of(outer).hex(),
        "seconds_training": counters.seconds_training,
        "seconds_waiting": counters.seconds_waiting,
        "ledger": _numbers(book),
    }
    return PeerAccount(row, book, events, outer, killed_at)


def journal_events(folder: RunFolder) -> list[tuple[float, Event]]:
    """Return all events of a peer's journal with their times, in seconds since the epoch."""
    lines = [line for part in (rotated_path(folder.journal), folder.journal) for line in read_lines(part)]
    return [(t, event) for event, t in filter(None, lines)]


def last_state_evaluated(told: Sequence[Event]) -> Evaluated | None:
    """Return the last evaluation in a journal if it was of the last state. None: the state has changed since, or was
    never evaluated."""
    for event in reversed(told):
        if isinstance(event, Evaluated):
            return event
        if isinstance(event, RoundEnded | CaughtUp | Refounded):
            return None
    return None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _numbers(book: Ledger) -> dict[str, int]:
    return {
        "processed": book.processed,
        "applied": book.applied,
        "dropped": book.dropped,
        "outstanding": book.outstanding,
    }


def _saved_outer(folder: RunFolder, run_id: bytes, layout: Layout) -> torch.Tensor | None:
    checkpoint, _ = CheckpointStore(folder.checkpoints).latest(run_id, layout.digest())
    return None if checkpoint is None else checkpoint.load()[0]


def replica_spread(outers: Iterable[torch.Tensor | None]) -> float | None:
    """Return the root mean square over the peers of ||outer_params - mean|| / ||mean||, in float64. None without a
    peer."""
    known = [outer.to(torch.float64) for outer in outers if outer is not None]
    if not known:
        return None
    mean = torch.stack(known).mean(dim=0)
    squares = [((outer - mean).norm() / mean.norm()).square() for outer in known]
    return float(torch.stack(squares).mean().sqrt())


def participation(accounts: Iterable[PeerAccount], topology: Topology) -> float | None:
    """Return exchanged peer-rounds divided by due ones: with n live peers, 2 * floor(n / 2) are due in a pair round, n
    in a group round. A peer is live in a round if the round was due for it, and it ended the round or was not killed
    before the deadline. None: no round had two live peers."""
    live: dict[int, int] = {}
    exchanged: dict[int, int] = {}
    for peer in accounts:
        for round_ in _live_rounds(peer):
            live[round_] = live.get(round_, 0) + 1
        for _, event in peer.events:
            if isinstance(event, RoundEnded) and event.outcome == "exchanged":
                exchanged[event.round] = exchanged.get(event.round, 0) + 1
    due = sum(topology.due(count) for count in live.values() if count > 1)
    return sum(exchanged.values()) / due if due else None


def _live_rounds(peer: PeerAccount) -> set[int]:
    ended = {event.round for _, event in peer.events if isinstance(event, RoundEnded)}
    rounds = set()
    for _, event in peer.events:
        if isinstance(event, RoundDue):
            cut_short = peer.killed_at is not None and peer.killed_at < event.deadline and event.round not in ended
            if not cut_short:
                rounds.add(event.round)
    return rounds


def swarm_report(
    signed: SignedManifest,
    seed: int,
    wall_s: float,
    accounts: list[PeerAccount],
    fault_records: Sequence[FaultRecord] = (),
    hung: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the JSON object of `--report`."""
    topology = resolve(signed.manifest.sync).topology_spec
    seen = _attendance(signed, accounts, fault_records)
    lasts = [a.row["val_loss_last"] for a in accounts if a.row["exit_code"] == 0]
    losses = [loss for loss in lasts if loss is not None]
    books = [a.book for a in accounts]
    tokens, training_s = sum(a.row["tokens"] for a in accounts), _training_s(accounts)
    return {
        "run_id": signed.run_id.hex(),
        "preset": signed.manifest.sync.preset,
        "seed": seed,
        "wall_s": round(wall_s, 3),
        "peers": [a.row for a in accounts],
        "faults": recoveries([a.events for a in accounts], fault_records),
        "hung": list(hung),
        "swarm": {
            "val_loss_mean": sum(losses) / len(losses) if losses else None,
            "replica_spread": replica_spread(a.outer for a in accounts),
            "participation": _participation(accounts, topology, seen),
            "rounds_ended_in_time": None if seen is None else seen.ended_in_time,
            "rounds_closed_in_time": None if seen is None else seen.closed_in_time,
            "tokens_per_s": tokens / training_s if training_s else 0.0,
            "ledger": {
                "processed": sum(b.processed for b in books),
                "applied": sum(b.applied for b in books),
                "dropped": sum(b.dropped for b in books),
                "outstanding": sum(b.outstanding for b in books),
            },
        },
    }


def _training_s(accounts: Sequence[PeerAccount]) -> float:
    """Return the seconds from the first peer's start of training to the last peer's last round or leave."""
    began = [at for a in accounts for at, event in a.events if isinstance(event, TrainingBegan)]
    ended = [at for a in accounts for at, event in a.events if isinstance(event, RoundEnded | RoundMissed | Leaving)]
    return max(0.0, max(ended) - min(began)) if began and ended else 0.0


def last_round(accounts: Iterable[PeerAccount]) -> int:
    """Return the last round that any peer ended or gave up. -1: none."""
    return max((e.round for a in accounts for _, e in a.events if isinstance(e, RoundEnded | RoundMissed)), default=-1)


def trained_since(account: PeerAccount, since: float) -> bool:
    """Return whether a peer began to train after `since` (seconds since the epoch)."""
    return any(isinstance(event, TrainingBegan) and at >= since for at, event in account.events)


def has_sent(account: PeerAccount) -> bool:
    """Return whether a peer sent anything in an exchange."""
    return any(isinstance(event, RoundEnded) and event.bytes_sent > 0 for _, event in account.events)


def attack_report(accounts: Sequence[PeerAccount], attacks: Mapping[int, str]) -> AttackReport:
    """Return the effect of the lying peers (number from 1 -> kind) on the honest ones."""
    honest = [[event for _, event in a.events] for number, a in enumerate(accounts, 1) if number not in attacks]
    liars = tuple(a.row["peer_id"] for number, a in enumerate(accounts, 1) if number in attacks)
    kinds = " ".join(sorted(set(attacks.values())))
    journals = [a.events for number, a in enumerate(accounts, 1) if number not in attacks]
    away = excluded(honest, liars)
    return AttackReport(kinds, liars, mean_last_loss(honest), None, away, newcomers(journals))


def _attendance(
    signed: SignedManifest, accounts: list[PeerAccount], fault_records: Sequence[FaultRecord]
) -> Attendance | None:
    """Count the attendance. None with a round clock in steps, whose rounds are due at no common moment."""
    sync = signed.manifest.sync
    method = resolve(sync)
    if method.clock != "seconds":
        return None
    clock, rounds = method.round_clock(), signed.manifest.rounds
    kills = [
        FaultRecord(Fault("kill", number, at=0.0), a.killed_at, a.killed_at)
        for number, a in enumerate(accounts)
        if a.killed_at is not None and not any(h.fault.kind == "kill" and h.fault.peer == number for h in fault_records)
    ]
    return attendance([a.events for a in accounts], [*fault_records, *kills], clock, rounds, method.topology_spec)


def _participation(accounts: list[PeerAccount], topology: Topology, seen: Attendance | None) -> float | None:
    if not topology.exchanges:
        return None
    return participation(accounts, topology) if seen is None else seen.participation


def was_killed(row: dict[str, Any]) -> bool:
    """Return whether a peer's last process ended by our SIGKILL. (A restarted peer has the exit code of its last
    process.)"""
    return bool(row["killed"]) and row["exit_code"] == -signal.SIGKILL


def table(report: dict[str, Any]) -> str:
    """Return the report as a text table."""
    head = (
        f"{'peer':<10}{'exit':>7}{'steps':>7}{'exchanged':>11}{'solo':>6}{'refused':>9}{'failed':>8}"
        f"{'first':>8}{'last':>8}{'sent MB':>9}"
    )
    lines = [head]
    for number, peer in enumerate(report["peers"], 1):
        rounds = peer["rounds"]
        end = "killed" if was_killed(peer) else peer["exit_code"]
        lines.append(
            f"{f'peer {number}':<10}{end!s:>7}{peer['steps']:>7}{rounds['paired']:>11}{rounds['solo']:>6}"
            f"{rounds['refused']:>9}{rounds['failed']:>8}{_number(peer['val_loss_first']):>8}{_number(peer['val_loss_last']):>8}"
            f"{_three_digits(peer['bytes_sent'] / 1e6):>9}"
        )
    swarm = report["swarm"]
    book = swarm["ledger"]
    balance = book["processed"] - book["applied"] - book["dropped"] - book["outstanding"]
    lines += [
        "",
        f"{_mean_of(report['peers']):<37}{_number(swarm['val_loss_mean'])} nats a token",
        f"replica spread                       {_number(swarm['replica_spread'], 5)}",
        *_share_line("rounds exchanged, of those due", swarm["participation"]),
        *_share_line("rounds ended in time", swarm["rounds_ended_in_time"]),
        *_share_line("rounds ended, or given up and told", swarm["rounds_closed_in_time"]),
        f"tokens a second                      {swarm['tokens_per_s']:.0f}",
        f"ledger (processed - rest)            {balance}",
    ]
    more = (
        *_unevaluated(report["peers"]),
        *_sybil_lines(report),
        *_attack_lines(report),
        *_fault_lines(report["faults"]),
        "measured: first and last are the loss on the hold-out in nats a token, sent the payload of exchanges",
        "tokens a second are by the clock, from the first start of training to the last outer step",
        *unmet_lines(report["orders"]),
    )
    return "\n".join([*lines, *more])


def _mean_of(rows: list[dict[str, Any]]) -> str:
    """Return the label of the mean loss, with the number of peers in the mean: peers that exited with 0 and were
    evaluated at their last state."""
    judged = sum(row["exit_code"] == 0 and row["val_loss_last"] is not None for row in rows)
    return f"validation loss (mean of {judged} of {len(rows)})"


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def _share_line(label: str, share: float | None) -> list[str]:
    """Return the line of a share. Empty if it was not counted, as with rounds in inner steps."""
    return [] if share is None else [f"{label:<37}{share:.1%}"]


def _unevaluated(rows: list[dict[str, Any]]) -> list[str]:
    """Return one line for each peer whose last state was not evaluated."""
    return [
        f"peer {number} was not evaluated after round {row['val_loss_round']}"
        for number, row in enumerate(rows, 1)
        if row["val_loss_last"] is None and row["val_loss_round"] is not None
    ]


def _sybil_lines(report: dict[str, Any]) -> list[str]:
    if (sybils := report.get("sybil_records")) is None:
        return []
    return [
        f"records of fresh keys                {sybils['records']}, {sybils['seen']} in sight",
        f"the silent address they name         {sybils['connections']} connections in {sybils['seconds']:.0f} s",
    ]


def _attack_lines(report: dict[str, Any]) -> list[str]:
    if "attack" not in report:
        return []
    attack, away = report["attack"], report["attack"]["excluded"]
    liars = [f"peer {number}" for number, row in enumerate(report["peers"], 1) if row["peer_id"] in attack["liars"]]
    return [
        f"liars                                {', '.join(liars)} ({attack['kind']})",
        f"validation loss of the honest        {_number(attack['honest_loss'])} nats a token",
        f"exchanges they turned away           {away['liars']} with liars, {away['honest']} with each other",
        *(_newcomer_line(newcomer, attack["liars"]) for newcomer in attack["newcomers"]),
    ]


def _newcomer_line(newcomer: dict[str, Any], liars: Sequence[str]) -> str:
    giver = "a liar" if newcomer["donor"] in liars else "an honest peer"
    loss = f"{_number(newcomer['loss'])} nats a token, the others last had {_number(newcomer['others_loss'])}"
    return f"state of a newcomer                  from {giver}, {newcomer['refused']} refused: {loss}"


def _fault_lines(faults: list[dict[str, Any]]) -> list[str]:
    if not faults:
        return []
    ends = [f"{row['recovered_s']:.1f} s" if row["recovered_s"] is not None else row["why"] for row in faults]
    return ["", "fault and recovery", *(f"  {row['fault']}: {end}" for row, end in zip(faults, ends, strict=True))]


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def write_report(report: dict[str, Any], path: Path) -> None:
    """Write the report as one JSON object. The file is replaced atomically."""
    import json

    replace_file(path, f"{json.dumps(report, indent=2)}\n".encode(), mode=0o666)
