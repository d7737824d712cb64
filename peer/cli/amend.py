"""`peer manifest amend`: change a run that is under way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any

import click

from peer.cli.options import home, identity_path, signing_key
from peer.cli.printing import echo
from peer.errors import BadPayload, NotRunning, UsageError, for_shell
from peer.identity import is_peer_id
from peer.protocol.messages import WIRE_VERSION, RunId
from peer.protocol.policy.amendments import Change, describe, superseded
from peer.run.home import Home
from peer.run.manifest import SignedManifest, load_signed, other_operator_error
from peer.run.resolve import resolve
from peer.run.statements.files import beside, known_start, load, load_kept, write_statements
from peer.run.statements.kinds import AMENDMENT, MAX_COUNT, MAX_REASON, PAPER
from peer.run.statements.log import StatementLog

CHANGES: dict[str, Change] = {change.value.replace("_", "-"): change for change in Change if change is not Change.GO_ON}
CHANGES["resume"] = Change.GO_ON
LIST = "list"
FILES_WITH_PEERS = ("run_view.json", "directory.json", "journal.jsonl")
"""Files in a run's folder that contain peer ids."""
ID_CHARS = 6
"""Fewest characters of a peer id's ending that are accepted: the number that `peer status` shows."""
_ID = re.compile(r"12D3Koo[1-9A-HJ-NP-Za-km-z]{43,49}")
LEAST_SCALE, MOST_SCALE = 1e-3, 10.0
"""Factors of the learning rate that are accepted from an operator. Peers accept any up to 100."""
MOST_AHEAD_S = 366 * 86_400.0
"""Seconds from now to the latest round that an amendment may name."""
NEEDS = {
    Change.LR_SCALE: "a factor, e.g. 0.5",
    Change.WIRE: "wire versions, e.g. 1-2",
    Change.BAN: "a peer id, or its ending",
    Change.UNBAN: "a peer id, or its ending",
    Change.REVOKE: "a peer id, or its ending",
    Change.REFOUND: "the digest of a state",
}


class ChangeChoice(click.Choice[str]):
    """The kinds of amendment, by their names on the command line."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in ("go-on", "go_on"):
            raise UsageError(f"{value} is called resume now", "Give: peer manifest amend run.toml resume")
        return str(super().convert(value, param, ctx))


@click.command("amend", epilog='Example: peer manifest amend run.toml lr-scale 0.5 --at-round 120 --reason "plateau"')
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("change", type=ChangeChoice([*CHANGES, LIST]))
@click.argument("value", required=False)
@click.option("--at-round", type=click.IntRange(0), help="First round it holds in.  [default: as soon as it is known]")
@click.option("--in-rounds", type=click.IntRange(1), help="First round it holds in, as rounds from now.")
@click.option("--reason", default="", help="Reason that every volunteer can read.")
@home
@identity_path
def command(
    file: Path,
    change: str,
    value: str | None,
    at_round: int | None,
    in_rounds: int | None,
    reason: str,
    home: Path,
    identity_path: Path | None,
) -> None:
    """Change a run that is under way: sign an amendment and append it to run.amendments in the manifest's folder.

    The bootstrap node reads that file while it runs and distributes it. Every peer applies the amendment from the named
    round on. lr-scale takes a factor, wire a range of versions, ban and unban a peer id. revoke takes the peer id of an
    invitation, and unban restores it. refound takes the digest of the new state. pause and resume take no value.

    An amendment may name an earlier round than the amendments before it. If both change the same thing, it replaces the
    other one, which then never takes effect.

    Instead of a peer id you can give its ending, as the status and the page show it, if exactly one known peer has that
    ending. list prints the amendments so far and needs no key."""
    signed = load_signed(file)
    if change == LIST:
        _list(file, signed, value)
        return
    operator = signing_key(home, identity_path)
    if operator.peer_id != signed.manifest.operator:
        raise other_operator_error(file, signed.manifest.operator, operator)
    log = _amendments_of(file, signed)
    kind = CHANGES[change]
    if in_rounds is not None:
        if at_round is not None:
            raise UsageError("--at-round and --in-rounds name two rounds", "Give one of them.")
        at_round = max(0, _round_now(signed, home)) + in_rounds
    if kind is Change.REVOKE and signed.manifest.admission.kind == "open":
        raise UsageError("this run admits everybody, invited or not", "Keep a peer out with: ban PEER")
    if value is not None and kind in (Change.BAN, Change.UNBAN, Change.REVOKE):
        value = _peer(value, _ids_known(home, signed.run_id) | {str(one.peer) for one in log.amendments})
    fields = _fields(kind, value)
    _ensure_sane(kind, fields, reason, file, signed, len(log.chain))
    now, latest = _round_if_known(signed, home), max(log.amendments, key=lambda one: one.round, default=None)
    if at_round is not None:
        _ensure_reachable(at_round, signed, home)
        at_round = max(at_round, now or 0)  # an amendment cannot change past rounds
    else:
        at_round = now if now is not None else latest.round if latest is not None else 0
        if now is None and latest is not None and at_round:
            same = f"this amendment holds from round {at_round} on, as amendment {latest.number}"
            echo(f"the round is not known here: {same}. With --at-round 0 one holds at once", err=True)
    try:
        log.amend(operator, at_round, kind, reason, **fields)
    except BadPayload as bad:
        raise UsageError(bad.reason, f"Give {NEEDS.get(kind, 'nothing')}.") from None
    write_statements(beside(file, AMENDMENT), log.chain)
    echo(describe(log.amendments[-1]))
    for never, instead in superseded(log.amendments).items():
        if instead == len(log.amendments):
            echo(f"amendment {never} will not hold: this one replaces it")
    if latest is not None and at_round < latest.round:
        echo(
            f"amendment {latest.number} holds from a later round on. Peers of an earlier version refuse one that holds "
            "before its predecessors, and all that follow. They have to be updated",
            err=True,
        )
    if kind is Change.REFOUND:
        node = f"peer bootstrap {for_shell(file)} --state FOLDER"
        echo(f"from then on every peer waits until a node gives that state. `{node}` prints its digest", err=True)
    echo(f"wrote {beside(file, AMENDMENT)}. A bootstrap node that runs from {file} reads it within seconds")


def _ensure_sane(
    kind: Change, fields: dict[str, Any], reason: str, file: Path, signed: SignedManifest, held: int
) -> None:
    """Raise UsageError for an amendment that would end the run, or that peers would refuse."""
    if held >= MAX_COUNT:
        raise UsageError(f"a run has at most {MAX_COUNT} amendments, and all of them are signed", "Begin another run.")
    if len(reason) > MAX_REASON or not reason.isprintable():
        raise UsageError(
            "the reason is too long, or holds what cannot be printed",
            f"Give --reason in at most {MAX_REASON} printable characters.",
        )
    if kind is Change.LR_SCALE and not LEAST_SCALE <= fields["value"] <= MOST_SCALE:
        raise UsageError(
            f"a learning rate times {fields['value']:g} stops or spoils the run",
            f"Give a factor from {LEAST_SCALE:g} to {MOST_SCALE:g}.",
        )
    if kind is Change.WIRE and not fields["low"] <= WIRE_VERSION <= fields["high"]:
        raise UsageError(
            f"wire versions {fields['low']} to {fields['high']} put out all that speak {WIRE_VERSION}, as we do",
            f"Give a range with {WIRE_VERSION} in it, or amend with a program that speaks the newer version.",
        )
    if kind in (Change.BAN, Change.REVOKE):
        _ensure_not_a_node(fields["peer"], file, signed)


def _ensure_not_a_node(peer: str, file: Path, signed: SignedManifest) -> None:
    """Raise UsageError for the operator's own key, and for a node with a delegation, because nodes distribute the
    amendments."""
    if peer == signed.manifest.operator:
        raise UsageError(f"{peer} is the operator's own key", "Name another peer.")
    log = StatementLog(signed.run_id, signed.manifest.operator)
    load(beside(file, PAPER), log)
    if peer in log.nodes(time.time()):
        raise UsageError(
            f"{peer} is a node of yours, which hands your amendments on",
            f"If it was taken over, first take its rights back: peer manifest delegate {for_shell(file)} {peer} --may "
            "nothing",
        )


def _ensure_reachable(at_round: int, signed: SignedManifest, home: Path) -> None:
    """Raise UsageError for a round that the run never reaches, or that is more than a year away."""
    rounds, sync = signed.manifest.rounds, signed.manifest.sync
    if at_round >= rounds:
        raise UsageError(
            f"an amendment from round {at_round} on would never hold: the run has {rounds} rounds",
            f"Name a round from 0 to {rounds - 1}.",
        )
    if sync.clock != "seconds":
        return
    now = time.time()
    clock = resolve(sync).round_clock(_start_if_known(signed, home) or now)
    if clock.due_at(at_round - 1) > now + MOST_AHEAD_S:
        most = clock.round_at(now + MOST_AHEAD_S)
        raise UsageError(
            f"round {at_round} is more than a year ahead",
            f"Name a round up to {most}, or amend when the time has come.",
        )


def _amendments_of(file: Path, signed: SignedManifest) -> StatementLog:
    """Return the amendments in the operator's file. Raises ManifestError when the file is not valid."""
    log = StatementLog(RunId(signed.run_id), signed.manifest.operator)
    load(beside(file, AMENDMENT), log)
    return log


def _list(file: Path, signed: SignedManifest, value: str | None) -> None:
    """Print the amendments in the operator's file, oldest first."""
    if value is not None:
        raise UsageError("list takes no value", "Give: peer manifest amend run.toml list")
    log = _amendments_of(file, signed)
    never = superseded(log.amendments)
    for amendment in log.amendments:
        echo(describe(amendment, never.get(amendment.number)))
    if not log.amendments:
        echo(f"no amendments in {beside(file, AMENDMENT)}", err=True)


def _ids_known(home: Path, run_id: bytes) -> set[str]:
    """Return the peer ids that this home knows, from its daemon's status and from the files of the run."""
    from peer.node.control import send_command

    kept = Home(home, make=False)
    texts = list[str]()
    with contextlib.suppress(NotRunning):
        texts.append(json.dumps(asyncio.run(send_command(kept.control_socket, "status", 5.0))))
    for name in FILES_WITH_PEERS:
        with contextlib.suppress(OSError):
            texts.append((kept.run(run_id).path / name).read_text(errors="replace"))
    return {found for text in texts for found in _ID.findall(text) if is_peer_id(found)}


def _peer(value: str, known: set[str]) -> str:
    """Return the peer id that `value` is, or the only known one that ends with it. Raises UsageError."""
    ending = value.lstrip("….")
    if is_peer_id(value):
        return value
    found = sorted(peer for peer in known if ending and peer.endswith(ending))
    if len(ending) >= ID_CHARS and len(found) == 1:
        return found[0]
    if len(ending) < ID_CHARS:
        why = f"{value[:80]!r} is no peer id, and an ending has at least {ID_CHARS} characters"
    elif found:
        why = f"{len(found)} peers known here end in {ending}: {', '.join(found)}"
    else:
        why = f"no peer known here ends in {ending[:80]}"
    raise UsageError(
        why, "Give the whole peer id: `peer status --ids` tells it, and a click on it on the page copies it."
    )


def _round_now(signed: SignedManifest, home: Path) -> int:
    """Return the current round by this machine's clock, negative before the start. The start comes from the manifest or
    from the papers in this home. Raises UsageError when neither has it."""
    sync, advice = signed.manifest.sync, "Give --at-round. `peer status` of any peer shows the round."
    or_home = f"{advice} Or name the --home of a peer or node of this run, and the operator's key with --identity-path."
    if sync.clock != "seconds":
        raise UsageError("this run counts its rounds in inner steps: only its peers know the round", advice)
    if not (start := _start_if_known(signed, home)):
        raise UsageError(f"the home {home} does not know when, or whether, the run began", or_home)
    return resolve(sync).round_clock(start).round_at(time.time())


def _start_if_known(signed: SignedManifest, home: Path) -> float:
    """Return when round 0 began, seconds since the epoch. 0: neither the manifest nor this home knows it."""
    folder, log = (
        Home(home, make=False).run(signed.run_id).path,
        StatementLog.of(signed.run_id, signed.manifest, time.time),
    )
    load_kept(folder, log)
    return known_start(log, folder)


def _round_if_known(signed: SignedManifest, home: Path) -> int | None:
    """Return the current round, 0 before the run has begun. None: not known here."""
    try:
        return max(0, _round_now(signed, home))
    except UsageError:
        return None


def _fields(change: Change, value: str | None) -> dict[str, Any]:
    """Return the amendment's fields besides its kind. Raises UsageError."""
    if (change in NEEDS) != (value is not None):
        raise UsageError(f"{change.value} takes {NEEDS.get(change, 'no value')}", f"Give {NEEDS.get(change, 'none')}.")
    text = value or ""
    try:
        match change:
            case Change.LR_SCALE:
                return {"value": float(text)}
            case Change.WIRE:
                low, _, high = text.partition("-")
                return {"low": int(low), "high": int(high or low)}
            case Change.BAN | Change.UNBAN | Change.REVOKE:
                return {"peer": text}
            case Change.REFOUND:
                return {"digest": text.lower()}
            case _:
                return {}
    except ValueError:
        raise UsageError(f"{change.value} {text[:80]!r} cannot be read", f"Give {NEEDS[change]}.") from None
