"""Makes all checks of one machine, in order. Each has a deadline. A check that cannot be made is itself a finding.

Nothing is written into the home: temporary node and trial use a temporary folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from peer.early_signals import INTERRUPTED_EXIT
from peer.errors import HomeUnusable, PeerError
from peer.node.doctor import connection, home, machine, room
from peer.node.doctor.finding import (
    EXIT_CODES,
    DoctorFinding,
    Readiness,
    Severity,
    failure,
    fine,
    readiness,
    unchecked,
    warning,
)
from peer.node.doctor.prediction import Prediction, StepTrial
from peer.node.process import on_stop_signals
from peer.run.files.artifact_folder import needed_artifacts
from peer.run.memory import free_bytes
from peer.run.options import PeerOptions
from peer.user_folders import expand_user, temporary_folder

if TYPE_CHECKING:
    from peer.joining.artifacts import RunFiles
    from peer.node.doctor.visit import RunVisit
    from peer.run.manifest import Manifest
    from peer.trainer.subprocess import TrainerSubprocess

MACHINE_S, OPEN_S, CALLS_S, TRIAL_S = 20.0, 60.0, 90.0, 180.0
"""Deadlines in seconds: of a check of this machine, of opening the network, of calls to peers, of the trial."""

T = TypeVar("T")
Tell = Callable[[DoctorFinding], None]


@dataclass(slots=True, kw_only=True)
class Examination:
    """One examination of this machine, and its findings so far. `on_finding`: called with each finding at once."""

    options: PeerOptions
    with_run: bool
    """Whether the user named a run."""
    torch_check: Callable[[], str]
    """Returns the version of torch, or raises TorchWrong."""
    on_finding: Tell
    on_step: Callable[[str], None] = lambda text: None
    """Called with the present activity, for a user who waits."""
    findings: list[DoctorFinding] = field(default_factory=list)
    prediction: Prediction = field(default_factory=Prediction)
    _daemon: home.RunningDaemon | None = None

    @property
    def readiness(self) -> Readiness:
        return readiness(self.findings)

    def add(self, *found: DoctorFinding) -> None:
        """Add findings, and report each."""
        for one in found:
            self.findings.append(one)
            self.on_finding(one)

    async def run(self) -> None:
        """Make all checks."""
        torch_works = await self._machine()
        await self._home()
        try:
            scratch = temporary_folder("peer-doctor-")
        except HomeUnusable as error:
            self.add(failure("temporary", error), *self._room(None, None))
            return
        with scratch as name:
            folder = Path(name)
            if torch_works:
                async with self._early_trainer(folder) as early:
                    await self._with_network(folder, early)
            else:
                self.add(unchecked("network", "it needs torch", "Install torch first."), *self._room(None, None))

    # -- this machine --------------------------------------------------------------------------------------------------

    async def _machine(self) -> bool:
        """Check this machine. Return whether torch can be loaded."""
        self.add(machine.python(), machine.torch_version(self.torch_check), machine.processor(), machine.open_files())
        works = await self._checked("torch", MACHINE_S, self._load_torch())
        gpus = await self._checked("gpu", MACHINE_S, asyncio.to_thread(machine.nvidia))
        if gpus is not None:
            build = next((one.measured for one in self.findings if one.what == "torch"), "")
            self.add(machine.accelerators(gpus, self.options.device, build.partition(" ")[0]))
        self.add(machine.kernels())
        if not (self.with_run and connection.all_on_this_machine(self.options.initial_peers)):
            self.add(connection.connection())
        return bool(works)

    async def _load_torch(self) -> bool:
        try:
            wrong = await asyncio.to_thread(_volunteer_checks, self.options)
        except (ImportError, OSError) as error:
            if not self._is_wrong("torch"):
                fix = "Install torch again, in a new virtual environment."
                self.add(DoctorFinding(Severity.ERROR, "torch", f"it cannot be loaded: {error}", fix))
            return False
        self.add(*wrong)
        return True

    async def _home(self) -> None:
        path, options = expand_user(self.options.home).absolute(), self.options
        self.add(home.home(path), home.key(expand_user(options.identity_path or path / "identity.key").absolute()))
        self._daemon = await self._checked("daemon", MACHINE_S, home.running(path))
        if self._daemon is not None:
            self.add(home.beside(self._daemon, options.run_id.hex() if self.with_run else ""))

    def _room(self, manifest: Manifest | None, files: RunFiles | None) -> list[DoctorFinding]:
        """Compare memory and disk with the need of the run, or report what is free."""
        path, options = expand_user(self.options.home).absolute(), self.options
        tensors = None if files is None else files.tensors
        memory = room.memory(free_bytes(), manifest, options.device, tensors)
        if self._daemon is not None and memory.severity is Severity.ERROR:
            memory = warning("memory", f"{memory.measured}, next to the daemon that runs", memory.fix)
        need = None if manifest is None else room.disk_need(manifest, options)
        held = 0
        if manifest is not None:
            held = room.held_disk(path / "runs" / options.run_id.hex()[:16], options.checkpoints_kept)
        return [memory, room.disk(path, room.free_disk(path), need, held)]

    # -- the run -------------------------------------------------------------------------------------------------------

    async def _with_network(self, folder: Path, early: TrainerSubprocess | None) -> None:
        """Open the network side of a temporary node, and examine the run through it."""
        self.on_step("starting the network side")
        loaded = await self._checked("network", OPEN_S, self._load_network())
        if loaded is None:
            self.add(*self._room(None, None))
            return
        temporary_node, visit = loaded
        async with contextlib.AsyncExitStack() as stack:
            opening = stack.enter_async_context(temporary_node(self.options, folder / "home", self._daemon))
            opened = await self._checked("network", OPEN_S, opening)
            node, found = opened or (None, [])
            self.add(*found)
            if not self.with_run:
                self.add(*self._room(None, None))
                return
            looked = None if node is None else visit(node, self.options, folder / "artifacts")
            if looked is not None:
                await self._visit(looked)
            await self._fit(_manifest_of(looked, self.options), looked, folder, early)

    async def _load_network(self) -> tuple[Any, Any] | None:
        """Import the network side, which needs torch. None, with a finding: the installed torch is unsuitable."""
        try:
            return await asyncio.to_thread(_network_modules)
        except Exception as error:
            if not self._is_wrong("torch"):
                raise
            why = f"it cannot be loaded with this torch ({type(error).__name__})"
            self.add(unchecked("network", why, "Install the right torch first."))
            return None

    def _is_wrong(self, what: str) -> bool:
        return any(one.what == what and one.severity is Severity.ERROR for one in self.findings)

    async def _visit(self, visit: RunVisit) -> None:
        """Check the run from here, and have its peers check whether they reach this machine."""
        self.on_step(f"reaching the run, at most {self.options.wait_s:.0f} s")
        self.add(*(await self._checked("run", self.options.wait_s * 2 + CALLS_S, visit.reach()) or []))
        if visit.records:
            self.on_step("having peers of the run dial this machine")
            outside = await self._checked("reachable", CALLS_S, visit.look_from_outside())
            self.add(*([] if outside is None else [outside]))
            self.on_step("measuring the line with a peer of the run")
            self.add(*(await self._checked("line", CALLS_S, visit.measure_line()) or []))

    async def _fit(
        self, manifest: Manifest | None, visit: RunVisit | None, folder: Path, early: TrainerSubprocess | None
    ) -> None:
        """Compare the needs of the run with this machine, and try a few inner steps."""
        from peer.node.doctor.network import caps
        from peer.run.load import line_load
        from peer.run.resolve import resolve

        if manifest is None:
            self.add(*self._room(None, None))
            return
        options, files = self.options, await self._files(manifest, visit)
        self.add(*caps(line_load(manifest, resolve(manifest.sync)), options.max_upload, options.max_download))
        self.add(*(await self._checked("data", CALLS_S, asyncio.to_thread(_texts, manifest, options)) or []))
        fits = self._room(manifest, files)
        self.add(*fits)
        trial = None
        if self._daemon is None and files is not None and fits[0].severity is not Severity.ERROR:
            trial = await self._trial(manifest, files, folder, early)
        self.prediction = _prediction(trial, manifest, visit, options)

    async def _files(self, manifest: Manifest, visit: RunVisit | None) -> RunFiles | None:
        from peer.joining.artifacts import RunFiles

        if not needed_artifacts(manifest):
            return RunFiles()
        if visit is None or not visit.records:
            return None
        got = await self._checked("files", self.options.wait_s + CALLS_S, visit.fetch_files())
        if got is None:
            return None
        self.add(got[1])
        return got[0]

    async def _trial(
        self, manifest: Manifest, files: RunFiles, folder: Path, early: TrainerSubprocess | None
    ) -> StepTrial | None:
        from peer.node.doctor.trial import StepTrialRun

        options = replace(
            self.options,
            device="auto" if self._is_wrong("device") else self.options.device,
            data_dir=None if self._is_wrong("data") else self.options.data_dir,
        )
        self.on_step("trying a few inner steps of the run's model")
        got = await self._checked("training", TRIAL_S, StepTrialRun(options, folder, early).run(manifest, files))
        if got is None:
            return None
        self.add(got[1])
        return got[0]

    # -- deadlines -----------------------------------------------------------------------------------------------------

    async def _checked(self, what: str, within_s: float, check: Awaitable[T]) -> T | None:
        """Return the result of a check. None, with a finding: it failed or took too long."""
        try:
            async with asyncio.timeout(within_s):
                return await check
        except TimeoutError:
            self.add(unchecked(what, f"it did not end within {within_s:.0f} s"))
        except PeerError as error:
            self.add(failure(what, error))
        except Exception as error:  # noqa: BLE001 - one check that fails must not hide what the others find
            # `peer join` would fail with the same exception.
            found = f"not checked: {type(error).__name__}: {error}"
            self.add(DoctorFinding(Severity.ERROR, what, found, "Report this as a bug, with this line."))
        return None

    @contextlib.asynccontextmanager
    async def _early_trainer(self, folder: Path) -> AsyncIterator[TrainerSubprocess | None]:
        """Start a trainer process that loads torch in the meantime, if there will be a trial. Yields None otherwise."""
        if not self.with_run or self._daemon is not None:
            yield None
            return
        from peer.trainer.prestart import early_trainer

        async with early_trainer(folder, self.options.threads) as early:
            yield early


async def examined(examination: Examination, at_last: Callable[[], None]) -> int:
    """Run an examination, then `at_last`, and return the exit code. SIGINT and SIGTERM end it cleanly."""
    task = asyncio.create_task(examination.run())

    def stop() -> None:
        task.cancel()

    with on_stop_signals(stop):
        try:
            await task
        except asyncio.CancelledError:
            return INTERRUPTED_EXIT
    at_last()
    return EXIT_CODES[examination.readiness]


def _volunteer_checks(options: PeerOptions) -> list[DoctorFinding]:
    """Check `--device` and `--data` separately, as `peer join` does at its start. Loads torch."""
    from peer.joining.preflight import check_volunteer

    wrong = list[DoctorFinding]()
    for what, one in (("device", replace(options, data_dir=None)), ("data", replace(options, device="auto"))):
        try:
            check_volunteer(one)
        except PeerError as error:
            wrong.append(failure(what, error))
    return wrong


def _network_modules() -> tuple[Any, Any]:
    """Import the network side. Takes seconds."""
    from peer.node.doctor.guest import temporary_node
    from peer.node.doctor.visit import RunVisit

    return temporary_node, RunVisit


def _manifest_of(visit: RunVisit | None, options: PeerOptions) -> Manifest | None:
    """Return the run's manifest: as given, as fetched from peers, or as stored by an earlier start. None: there is
    none."""
    from peer.joining.manifest import stored_manifest
    from peer.run.home import RunFolder

    if options.manifest is not None:
        return options.manifest.manifest
    if visit is not None and visit.manifest is not None:
        return visit.manifest
    folder = expand_user(options.home).absolute() / "runs" / options.run_id.hex()[:16]
    kept = stored_manifest(RunFolder(folder), options.run_id) if os.access(folder, os.R_OK | os.X_OK) else None
    return None if kept is None else kept.manifest


def _texts(manifest: Manifest, options: PeerOptions) -> list[DoctorFinding]:
    """Survey the user's own texts, if the run trains on them."""
    from peer.joining.contract import secrets_warning, survey_own_texts

    if manifest.data.kind != "text":
        return []
    told, secrets = survey_own_texts(manifest, options)
    fix = "Take these files out of the --data folder, if they hold secrets."
    return [warning("data", f"{told}; {secrets_warning(secrets)}", fix) if secrets else fine("data", told)]


def _prediction(
    trial: StepTrial | None, manifest: Manifest, visit: RunVisit | None, options: PeerOptions
) -> Prediction:
    from peer.clock.monotonic import run_time
    from peer.node.doctor.prediction import RunLoad, predict
    from peer.run.costs import cost_of
    from peer.run.resolve import resolve

    method = resolve(manifest.sync)
    rounds = None if visit is None else visit.rounds()
    load = None
    if rounds is not None:
        cost = cost_of(manifest.model, method)
        state = 4 * manifest.model.parameters * (2 if method.one_state else 1)
        load = RunLoad(method=method, clock=rounds, sync_bytes=cost.bytes_per_sync, state_bytes=state)
    now = run_time() if visit is None else visit.node.local.clock.now()
    return predict(trial, load, None if visit is None else visit.down, now, options.uploads.day)
