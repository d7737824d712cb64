"""Derives the notices, which warn a person, from a status. Each sentence is written here once; the terminal, `peer
status`, the page and the log show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

from peer.observe.formatting import duration
from peer.observe.status.codec import from_json
from peer.observe.status.columns import ago, counted, short
from peer.observe.status.value import (
    DaemonStatus,
    MembershipStatus,
    Notice,
    NoticeSeverity,
    PauseStatus,
    ReputationStatus,
    RoundsStatus,
)

MOST_OF_A_KIND = 3
"""Most notices of one kind that are shown, such as declined calls."""
_ORDER = (NoticeSeverity.SERIOUS, NoticeSeverity.WARNING, NoticeSeverity.NOTE)


def with_notices(status: DaemonStatus) -> DaemonStatus:
    """Return the status with its notices, the most severe first."""
    found = sorted(_notices(status), key=lambda notice: _ORDER.index(notice.severity))
    return replace(status, notices=tuple(found))


def read_status(body: Mapping[str, Any]) -> DaemonStatus:
    """Read a status that a daemon sent, which may be of another version. If it sent no notices they are derived
    here."""
    status = from_json(DaemonStatus, body)
    return status if "notices" in body else with_notices(status)


def _notices(status: DaemonStatus) -> Iterator[Notice]:
    if status.key_shared:
        brief = "key in use elsewhere"
        yield Notice("key_shared", "key", status.key_shared, severity=NoticeSeverity.SERIOUS, brief=brief)
    if status.paused is not None and status.paused.holds:
        yield pause_notice(status.paused)
    if status.membership is not None:
        yield from _of_membership(status.membership)
    if status.machine is not None:
        fixes = chain(status.machine.fixes, repeat(""))  # an older daemon sends none
        for unfit, fix in zip(status.machine.unfit, fixes, strict=False):
            yield Notice("slow", "slow", unfit, fix)
    if status.directory.why:
        yield Notice("directory", "directory", status.directory.why, severity=NoticeSeverity.SERIOUS)
    if status.directory.losses:
        times = counted(status.directory.losses, "time")
        yield Notice("helper_lost", "p2pd", f"restarted {times}, last because {status.directory.last_loss}")
    if status.budget is not None and status.budget.why:
        brief = "upload budget used"
        yield Notice("budget", "budget", status.budget.why, severity=NoticeSeverity.SERIOUS, brief=brief)
    if status.progress is not None:
        yield from _of_rounds(status.progress)
    if status.reputation is not None:
        yield from _of_callers(status.reputation)


def pause_notice(paused: PauseStatus) -> Notice:
    """Return the notice of a pause that is in force."""
    return Notice("paused", "paused", paused.now, "Resume with `peer resume`.", NoticeSeverity.SERIOUS)


def _of_membership(membership: MembershipStatus) -> Iterator[Notice]:
    if (seconds := membership.cut_off_s) is not None:
        sentence = f"nobody answers for {duration(seconds)}: is this machine's connection down?"
        yield Notice("cut_off", "connection", sentence, severity=NoticeSeverity.SERIOUS)
    for one in membership.suspected:
        what = "answers nobody" if one.out else "is suspected"
        yield Notice("suspected", one.peer_id, f"{what} for {duration(one.seconds)}: {one.reason}", local=True)


def _of_rounds(progress: RoundsStatus) -> Iterator[Notice]:
    if (group := progress.group) is not None:
        if group.lacking:
            sentence = f"no outer step: {group.lacking}; the work stays"
            yield Notice("no_outer_step", "group", sentence, severity=NoticeSeverity.SERIOUS)
        for one in group.left_out:
            yield Notice("left_out", "left out", f"{short(one.peer_id)}: {one.reason}", local=True)
    for finding in progress.diagnosis:
        about = {"you": "line", "": "diagnosis"}.get(finding.who, "partner")
        if finding.who:
            yield Notice(finding.what, about, finding.why)
        else:
            yield Notice("diagnosis", about, finding.why, severity=NoticeSeverity.NOTE)
    if (params := progress.partner_params) is not None:
        if params.why_unchecked:
            yield Notice("unchecked", "unchecked", params.why_unchecked)
        if (last := params.last_refused) is not None:
            sentence = f"params of {short(last.peer_id)} in round {last.round:,}: {last.reason}"
            yield Notice("params_refused", "refused", sentence)


def _of_callers(reputation: ReputationStatus) -> Iterator[Notice]:
    for shunned in reputation.out_of_favour[:MOST_OF_A_KIND]:
        sentence = f"{short(shunned.peer_id)} for {duration(shunned.seconds_left)}: {shunned.reason}"
        yield Notice("shunned", "shunned", sentence, local=True)
    for call in reputation.refusals[:MOST_OF_A_KIND]:
        sentence = f"{ago(call.seconds_ago)}, {short(call.caller)}: {call.reason} ({call.code})"
        yield Notice("declined", "declined", sentence, local=True)
