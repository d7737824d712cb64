"""The contract of a volunteer with a run: what this machine will give, told once before anything is fetched.

A volunteer agrees once for each run and home. The agreement lies in the run's folder, so a restart does not ask."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from peer.errors import DataError, JoinDeclined
from peer.observe.formatting import amount
from peer.ports.console import Say
from peer.run.costs import cost_of
from peer.run.files.artifact_folder import needed
from peer.run.files.own_texts import survey
from peer.run.home import write_whole
from peer.run.manifest import Manifest, SignedManifest
from peer.run.memory import need_of, trains_in_main_memory
from peer.run.options import JoinOptions
from peer.run.presets import resolve
from peer.state.checkpoint import checkpoint_bytes

AGREED = "contract.json"
"""File in the run's folder with the contract that was agreed to."""

MOST_NAMED = 5
"""Files that one warning names."""

Ask = Callable[[str], Awaitable[bool | None]]
"""Function that asks a person a question; None: there is nobody to ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinContract:
    """What taking part in a run means for this machine."""

    run: str
    operator: str
    """Peer id of the key that signed the manifest."""
    model: str
    parameters: int
    data: str
    memory_bytes: int
    """Main memory of daemon and trainer, estimated."""
    disk_bytes: int
    """The most that checkpoints and the cache take in the home."""
    bytes_an_hour: float | None
    """Each way over the line. None: rounds are in inner steps, so the hour is not known."""

    def lines(self) -> list[str]:
        """Return the contract as lines for a person."""
        hourly = (
            "not known before the first round" if self.bytes_an_hour is None else amount(self.bytes_an_hour, "bytes")
        )
        return [
            f"run       {self.run}",
            f"operator  {self.operator}",
            f"model     {self.model}, {self.parameters:,} parameters",
            f"data      {self.data}",
            f"memory    about {amount(self.memory_bytes, 'bytes')}",
            f"disk      at most {amount(self.disk_bytes, 'bytes')}",
            f"an hour   {hourly} each way",
        ]


def contract_of(signed: SignedManifest, options: JoinOptions, texts: str) -> JoinContract:
    """Work out what the run takes from this machine, from its manifest and the volunteer's options alone.

    `texts` tells the volunteer's own texts, for a run that trains on them."""
    manifest = signed.manifest
    method = resolve(manifest.sync)
    cost = cost_of(manifest.model, method)
    files = needed(manifest)
    cache = options.cache_disk if manifest.data.kind == "tokens" else sum(ref.size for ref in files.values())
    need = need_of(manifest, trains_here=trains_in_main_memory(options.device))
    return JoinContract(
        run=f"{manifest.name} ({signed.run_id.hex()[:16]})",
        operator=manifest.operator,
        model=manifest.model.kind,
        parameters=manifest.model.parameters,
        data=_data(manifest, options, texts),
        memory_bytes=need.total,
        disk_bytes=cache + (options.checkpoints_kept + 1) * checkpoint_bytes(manifest.model.parameters),
        bytes_an_hour=0.0 if method.topology == "solo" else cost.bytes_per_hour,
    )


def _data(manifest: Manifest, options: JoinOptions, texts: str) -> str:
    match manifest.data.kind:
        case "text":
            return f"your own texts in {options.data_dir}, which stay on this machine: {texts}"
        case "tokens":
            return "token shards of the run, fetched from its peers as they are needed"
    return "the Python standard library of this machine"


def look_through(manifest: Manifest, options: JoinOptions) -> tuple[str, list[str]]:
    """Return what the volunteer's own texts are, and a warning for files that look like secrets. Runs in a thread.

    Raises DataError when the run needs texts and none were given."""
    if manifest.data.kind != "text":
        return "", []
    if options.data_dir is None:
        found = "this run trains on your own texts, and no folder was given"
        raise DataError(found, "Add --data DIR with text files.")
    found_texts = survey(options.data_dir)
    names = found_texts.suspicious
    if not names:
        return found_texts.told(), []
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    warning = f"these look like secrets, and would be trained on: {', '.join(names[:MOST_NAMED])}{more}"
    return found_texts.told(), [warning]


async def agree(contract: JoinContract, folder: Path, ask: Ask | None, say: Say, warnings: list[str]) -> None:
    """Show the contract and have it agreed to, once for this run. `ask` None: the volunteer agreed beforehand.

    `warnings` are sentences that deserve a look, such as files that look like secrets. They are shown, and asked about
    again, on every start that has them. Raises JoinDeclined, and HomeUnusable when the agreement cannot be kept."""
    kept = folder / AGREED
    known = kept.exists()
    for line in [*([] if known else contract.lines()), *warnings]:
        say(line)
    if ask is not None and (not known or warnings) and await ask("Take part on these terms?") is False:
        raise JoinDeclined(f"you did not agree to take part in {contract.run}")
    if not known:
        write_whole(kept, json.dumps(asdict(contract), indent=2).encode())
