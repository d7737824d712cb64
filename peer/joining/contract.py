"""The contract between a volunteer and a run: what the run takes from this machine, shown before anything is fetched.

A volunteer agrees once per run and home. The agreement is stored in the run's folder, so that a restart does not ask
again. A larger demand needs a new agreement."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from peer.clock.local_time import local_time
from peer.errors import DataError, JoinDeclined
from peer.methods.method import Method
from peer.observe.formatting import amount, duration
from peer.observe.status.value import ContractStatus, ContractTerms
from peer.ports.console import Say
from peer.run.costs import cost_of
from peer.run.description import described_model
from peer.run.files.artifact_folder import needed_artifacts
from peer.run.files.own_texts import survey
from peer.run.home import RunFolder, write_whole
from peer.run.load import bytes_a_day
from peer.run.manifest import Manifest, SignedManifest
from peer.run.memory import memory_need, trains_in_main_memory
from peer.run.options import PeerOptions
from peer.run.resolve import resolve
from peer.run.worth import worth_sentence
from peer.state.checkpoint import checkpoint_bytes

AGREED = "contract.json"
"""File in the run's folder that stores the agreed contract."""

MOST_NAMED = 5
"""Number of files that one warning lists."""

REPORTED = {
    True: "the operator's node hears every minute or two what this peer does (not with --no-summary)",
    False: "the operator's node nothing but what all peers see",
}
"""What this machine reports beside the exchanges, by whether summaries are sent."""

Ask = Callable[[str], Awaitable[bool | None]]
"""Asks the user a yes-or-no question. Returns None when no user is there."""


AMOUNTS = {
    "memory_bytes": "memory",
    "disk_bytes": "disk",
    "bytes_up_a_day": "a day",
    "bytes_down_a_day": "a day",
    "summary": "tells",
}
"""Fields of a contract that may grow between two starts of a run, with their labels. A larger value needs a new
agreement."""


def _covers(agreed: Mapping[str, Any], field: str, value: float | None) -> bool:
    """Return whether an agreement covers a value: at least as much was agreed to, or both are None (not known)."""
    if field not in agreed or value is None or agreed[field] is None:
        return field in agreed and agreed[field] is value
    return isinstance(agreed[field], int | float) and bool(value <= agreed[field])


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinContract(ContractTerms):
    """What a run takes from this machine, and for how long. `ContractTerms` has the fields."""

    def terms(self) -> list[tuple[str, str]]:
        """Return the contract as (label, value) rows for a person."""
        return [
            ("run", self.run),
            ("operator", self.operator),
            ("model", f"{self.model}, {self.parameters:,} parameters"),
            ("data", self.data),
            ("worth", self.worth),
            *self.guest_terms(),
        ]

    def guest_terms(self) -> list[tuple[str, str]]:
        """Return only the rows about the use of this machine, without the rows that describe the run."""
        return [
            ("device", f"{self.device}, {self.threads} thread{'s' * (self.threads != 1)}"),
            ("gives way", self.guest),
            ("memory", f"about {amount(self.memory_bytes, 'bytes')}, estimated"),
            ("disk", f"at most {amount(self.disk_bytes, 'bytes')}, estimated"),
            ("a day", self._daily()),
            ("ends", self._end()),
            ("tells", REPORTED[self.summary]),
            *([("log", self.log)] if self.log else []),
        ]

    def _daily(self) -> str:
        if self.bytes_up_a_day is None or self.bytes_down_a_day is None:
            every = amount(self.bytes_a_sync, "bytes")
            return f"not known, for rounds are in inner steps: {every} each way from one exchange to the next"
        up, down = amount(self.bytes_up_a_day, "bytes"), amount(self.bytes_down_a_day, "bytes")
        if self.upload_limit is not None and self.upload_limit < self.bytes_up_a_day:
            limit = amount(self.upload_limit, "bytes")
            return f"at most {limit} up, your limit (the run wants {up}), {down} down, estimated"
        return f"about {up} up and {down} down, estimated; more while joiners fetch the state from this peer"

    def _end(self) -> str:
        when = f"on {local_time(self.ends_at)}, " if self.ends_at is not None else ""
        return f"{when}{self.length}; sooner when you leave"

    def exceeded_terms(self, agreed: Mapping[str, Any]) -> list[str]:
        """Return the rows whose present value exceeds that of an agreement, or that the agreement lacks.

        Values that follow from the volunteer's own options, such as threads and caps, need no agreement."""
        terms = dict(self.terms())
        labels = (label for field, label in AMOUNTS.items() if not _covers(agreed, field, getattr(self, field)))
        return [f"{label} {terms[label]}" for label in dict.fromkeys(labels)]

    def largest_amounts(self, agreed: Mapping[str, Any]) -> dict[str, Any]:
        """Return for each field of `AMOUNTS` the larger of the present and the formerly agreed value."""
        here = {field: getattr(self, field) for field in AMOUNTS}
        return {field: agreed[field] if _covers(agreed, field, value) else value for field, value in here.items()}

    def lines(self) -> list[str]:
        """Return the contract as aligned lines for a person."""
        return [f"{label:<9} {value}" for label, value in self.terms()]


def contract_of(
    signed: SignedManifest, options: PeerOptions, texts: str, *, start: float = 0.0, folder: RunFolder | None = None
) -> JoinContract:
    """Compute what the run takes from this machine, from its manifest and the volunteer's options alone.

    `texts`: summary of the volunteer's own texts, for a run that trains on them. `start`: start of round 0, seconds
    since the epoch. 0: not known yet. `folder`: the run's folder, for the path of the log."""
    manifest = signed.manifest
    method = resolve(manifest.sync)
    cost = cost_of(manifest.model, method)
    daily = bytes_a_day(method, cost.bytes_per_sync)
    files = needed_artifacts(manifest)
    cache = options.cache_disk if manifest.data.kind == "tokens" else sum(ref.size for ref in files.values())
    need = memory_need(manifest, trains_here=trains_in_main_memory(options.device))
    return JoinContract(
        run=f"{manifest.name} ({signed.run_id.hex()[:16]})",
        operator=manifest.operator,
        model=described_model(manifest),
        parameters=manifest.model.parameters,
        data=_data(manifest, options, texts),
        memory_bytes=need.total,
        disk_bytes=cache + (options.checkpoints_kept + 1) * checkpoint_bytes(manifest.model.parameters),
        bytes_an_hour=0.0 if not method.exchanges else cost.bytes_per_hour,
        device=_device(options.device),
        threads=options.threads,
        bytes_up_a_day=daily,
        bytes_down_a_day=daily,
        upload_limit=options.uploads.day,
        bytes_a_sync=cost.bytes_per_sync,
        ends_at=run_end(manifest, start),
        length=_length(manifest, method),
        worth=worth_sentence(manifest.model.parameters, method),
        log="" if folder is None else str(folder.log),
        guest=_manners(options),
        summary=options.summary,
    )


def _manners(options: PeerOptions) -> str:
    """Return how the trainer gives way to the machine's owner, as one line."""
    guest = options.guest
    parts = ["to all programs" if guest.low_priority else "to no program (--priority normal)"]
    shares = ((guest.cpu, "of the cores"), (guest.gpu, "of the GPU's time"), (options.speed, "of the time"))
    parts += [f"trains on {share:.0%} {what}" for share, what in shares if share < 1]
    parts += [f"trains only while {', '.join(guest.when)}"] if guest.when else []
    parts += [f"pauses above {guest.max_temperature:g} °C"] if guest.max_temperature is not None else []
    parts += [f"pauses every day {options.quiet_hours}"] if options.quiet_hours is not None else []
    return "; ".join(parts)


def _device(wanted: str) -> str:
    """Return where the trainer will probably compute. Only the trainer decides: asking torch would load a driver into
    the daemon."""
    if wanted != "auto":
        return wanted
    return "cpu (no driver of a GPU is loaded here)" if trains_in_main_memory(wanted) else "cuda, if torch can use it"


def run_end(manifest: Manifest, start: float) -> float | None:
    """Return when the last round is due, seconds since the epoch. None: not known. `start`: start of round 0, 0 if not
    known."""
    clock = resolve(manifest.sync).round_clock(start)
    return clock.due_at(manifest.rounds - 1) if start and clock.kind == "seconds" else None


def _length(manifest: Manifest, method: Method) -> str:
    rounds = f"{manifest.rounds:,} rounds"
    if method.clock == "seconds":
        seconds = method.round_clock(0.0).due_at(manifest.rounds - 1)
        return f"after {rounds}, which last {duration(seconds)}"
    return f"after {rounds} of about {method.round_length:,.0f} inner steps, whose time depends on the machines"


def _data(manifest: Manifest, options: PeerOptions, texts: str) -> str:
    if options.attached:
        return "what your own training loop reads, which stays on this machine"
    match manifest.data.kind:
        case "text":
            return f"your own texts in {options.data_dir}, which stay on this machine: {texts}"
        case "tokens":
            return "token shards of the run, fetched from its peers as they are needed"
    return "the Python standard library of this machine"


def survey_own_texts(manifest: Manifest, options: PeerOptions) -> tuple[str, list[str]]:
    """Return a summary of the volunteer's own texts, and the names of files that look like secrets. Reads the folder,
    so it runs in a thread.

    Raises DataError when the run needs texts and no folder was given."""
    if manifest.data.kind != "text":
        return "", []
    if options.attached and options.data_dir is None:
        return "", []
    if options.data_dir is None:
        found = "this run trains on your own texts, and no folder was given"
        raise DataError(found, "Add --data DIR with text files.")
    found_texts = survey(options.data_dir)
    return found_texts.summary(), found_texts.suspicious


def secrets_warning(names: list[str]) -> str:
    """Return the warning about files that look like secrets."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"these look like secrets, and would be trained on: {', '.join(names[:MOST_NAMED])}{more}"


async def agree(
    contract: JoinContract, folder: Path, ask: Ask | None, say: Say, secrets: list[str] | None = None
) -> ContractStatus:
    """Show the contract and ask the volunteer to agree. Return the result for `peer status`. `ask` None: the volunteer
    agreed beforehand (`--yes`).

    An agreement holds for later starts of this run. The volunteer is asked again when the run takes more than was
    agreed to, such as after an update, and when there is a new file that looks like a secret (`secrets`).

    Raises JoinDeclined when the volunteer declines or cannot be asked, and HomeUnusable when the agreement cannot be
    stored."""
    kept, secrets = folder / AGREED, secrets or []
    former = _former(kept)
    covered = {} if former is None else former.get("covered", former)
    grown = contract.exceeded_terms(covered)
    agreed_at = None if former is None or grown else float(former["agreed_at"])
    if former is not None and grown:
        say(f"the run takes more than you agreed to on {local_time(former['agreed_at'])}: {', '.join(grown)}")
    for line in contract.lines() if agreed_at is None else []:
        say(line)
    if secrets:
        say(secrets_warning(secrets))
    if ask is not None and (agreed_at is None or not set(secrets) <= set(covered.get("secrets", ()))):
        answer = await ask("Take part on these terms?")
        if answer is None:
            found = f"nobody can be asked whether to take part in {contract.run}: input or output is no terminal"
            raise JoinDeclined(
                found, "Read the terms above. To agree to them, add --yes; in Python, JoinOptions(agreed=True)."
            )
        if not answer:
            raise JoinDeclined(f"you did not agree to take part in {contract.run}")
    agreed_at = time.time() if agreed_at is None else agreed_at
    # The options may have changed: the file holds the present terms, and the largest amounts ever agreed to.
    body = {
        **asdict(contract),
        "agreed_at": agreed_at,
        "covered": {**contract.largest_amounts(covered), "secrets": secrets},
    }
    write_whole(kept, json.dumps(body, indent=2).encode())
    return contract_report(contract, agreed_at)


def _former(kept: Path) -> dict[str, Any] | None:
    """Return the agreement of an earlier start. None: there is none that can be read."""
    try:
        found = json.loads(kept.read_bytes())
        written = kept.stat().st_mtime  # older versions stored no time
        agreed_at = float(found.get("agreed_at", written))
        return {**found, "agreed_at": agreed_at} if isinstance(found.get("covered", {}), dict) else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def contract_report(contract: JoinContract, agreed_at: float) -> ContractStatus:
    """Return the contract for `peer status`, with the rows that the status shows nowhere else."""
    rows = [(label, value) for label, value in contract.guest_terms() if label != "log"]
    return ContractStatus(contract, agreed_at, (*rows, ("agreed", f"on {local_time(agreed_at)}")))
