"""`peer manifest amend`: change what may change in a run that is under way."""

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
from peer.cli.telling import tell
from peer.errors import BadPayload, NotRunning, UsageError
from peer.identity import is_peer_id
from peer.protocol.messages import RunId
from peer.protocol.policy.amendments import Change, describe
from peer.run.amendments import Chain, beside, keep, load
from peer.run.home import Home
from peer.run.manifest import SignedManifest, load_signed, other_operator
from peer.run.papers.shelf import PAPERS, PaperShelf
from peer.run.papers.shelf import load as load_papers
from peer.run.papers.start import known_start
from peer.run.presets import resolve

WORDS: dict[str, Change] = {change.value.replace("_", "-"): change for change in Change if change is not Change.GO_ON}
WORDS["resume"] = Change.GO_ON
LIST = "list"
KNOW_PEERS = ("run_view.json", "directory.json", "journal.jsonl")
"""Files of a run's folder that name peers."""
ID_CHARS = 6
"""Least characters of an ending that names a peer: as many as `peer status` shows."""
_ID = re.compile(r"12D3Koo[1-9A-HJ-NP-Za-km-z]{43,49}")
NEEDS = {
    Change.LR_SCALE: "a factor, e.g. 0.5",
    Change.WIRE: "wire versions, e.g. 1-2",
    Change.BAN: "a peer id, or its ending",
    Change.UNBAN: "a peer id, or its ending",
    Change.REVOKE: "a peer id, or its ending",
    Change.REFOUND: "the digest of a state",
}


class Word(click.Choice[str]):
    """The kinds of amendment, by the words of the command line."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in ("go-on", "go_on"):
            raise UsageError(f"{value} is called resume now", "Give: peer manifest amend run.toml resume")
        return str(super().convert(value, param, ctx))


@click.command("amend", epilog='Example: peer manifest amend run.toml lr-scale 0.5 --at-round 120 --reason "plateau"')
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("change", type=Word([*WORDS, LIST]))
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
    """Change a run that is under way: sign an amendment and add it to run.amendments in the manifest's folder.

    The bootstrap node reads that file while it runs and spreads it. Every peer obeys from the named round on. lr-scale
    takes a factor, wire a range, ban and unban a peer id. revoke takes the peer id of an invitation, and unban gives it
    back. refound takes the digest of the new state. pause and resume take nothing.

    In place of a peer id its ending will do, as status and page show it, if one peer alone is known here that has it.
    list changes nothing and shows the amendments so far; no key is needed."""
    signed = load_signed(file)
    if change == LIST:
        _list(file, signed, value)
        return
    operator = signing_key(home, identity_path)
    if operator.peer_id != signed.manifest.operator:
        raise other_operator(file, signed.manifest.operator, operator)
    chain = Chain(RunId(signed.run_id), signed.manifest.operator)
    load(beside(file), chain)
    if in_rounds is not None:
        if at_round is not None:
            raise UsageError("--at-round and --in-rounds name two rounds", "Give one of them.")
        at_round = max(0, _round_now(signed, home)) + in_rounds
    if at_round is not None and at_round >= signed.manifest.rounds:
        reason = f"an amendment from round {at_round} on would never hold: the run has {signed.manifest.rounds} rounds"
        raise UsageError(reason, f"Name a round from 0 to {signed.manifest.rounds - 1}.")
    if WORDS[change] is Change.REVOKE and signed.manifest.admission.kind == "open":
        raise UsageError("this run admits everybody, invited or not", "Keep a peer out with: ban PEER")
    if value is not None and WORDS[change] in (Change.BAN, Change.UNBAN, Change.REVOKE):
        value = _peer(value, _ids_known(home, signed.run_id) | {str(one.peer) for one in chain.amendments})
    kind, earliest = WORDS[change], chain.amendments[-1].round if chain.amendments else 0
    if at_round is None:
        at_round = max(earliest, _round_if_known(signed, home))
    try:
        chain.make(operator, at_round, kind, reason, **_fields(kind, value))
    except BadPayload as bad:
        fix = f"The last amendment holds from round {earliest} on. Give --at-round {earliest} or later."
        raise UsageError(
            bad.reason, fix if bad.code == "amendment_order" else f"Give {NEEDS.get(kind, 'nothing')}."
        ) from None
    keep(beside(file), chain)
    tell(describe(chain.amendments[-1]))
    tell(f"wrote {beside(file)}. A bootstrap node that runs from {file} reads it within seconds")


def _list(file: Path, signed: SignedManifest, value: str | None) -> None:
    """Show the amendments in the operator's file, oldest first."""
    if value is not None:
        raise UsageError("list takes no value", "Give: peer manifest amend run.toml list")
    chain = Chain(RunId(signed.run_id), signed.manifest.operator)
    load(beside(file), chain)
    for amendment in chain.amendments:
        tell(describe(amendment))
    if not chain.amendments:
        tell(f"no amendments in {beside(file)}", err=True)


def _ids_known(home: Path, run_id: bytes) -> set[str]:
    """Return the peers that this home knows of: from its daemon's status, and from the files of the run."""
    from peer.node.control import ask

    kept = Home(home, make=False)
    texts = list[str]()
    with contextlib.suppress(NotRunning):
        texts.append(json.dumps(asyncio.run(ask(kept.control_socket, "status", 5.0))))
    for name in KNOW_PEERS:
        with contextlib.suppress(OSError):
            texts.append((kept.run(run_id).path / name).read_text(errors="replace"))
    return {found for text in texts for found in _ID.findall(text) if is_peer_id(found)}


def _peer(value: str, known: set[str]) -> str:
    """Return the peer id that a value names: itself, or the one known id that ends in it. Raises UsageError."""
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
    """Compute the round from this machine's clock and the run's start. The start is known to the manifest, or to the
    papers in this home. Raises UsageError when neither knows it."""
    sync, advice = signed.manifest.sync, "Give --at-round. `peer status` of any peer shows the round."
    or_home = f"{advice} Or name the --home of a peer or node of this run, and the operator's key with --identity-path."
    if sync.clock != "seconds":
        raise UsageError("this run counts its rounds in inner steps: only its peers know the round", advice)
    folder, shelf = Home(home).run(signed.run_id).path, PaperShelf(signed.run_id, signed.manifest.operator)
    load_papers(folder / PAPERS, shelf)
    if not (start := known_start(signed.manifest, shelf, folder)):
        raise UsageError(f"the home {home} does not know when, or whether, the run began", or_home)
    return resolve(sync).round_clock(start).round_at(time.time())


def _round_if_known(signed: SignedManifest, home: Path) -> int:
    """Return the round now. 0: it is not known here, or the run has not begun."""
    try:
        return max(0, _round_now(signed, home))
    except UsageError:
        return 0


def _fields(change: Change, value: str | None) -> dict[str, Any]:
    """Return the amendment's fields beyond its kind. Raises UsageError."""
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
