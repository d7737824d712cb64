"""The examination as a whole: deadlines, failing checks, and that nothing is left in the home."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from peer.errors import AddressError, DirectoryFailed, TorchWrong
from peer.joining import preflight
from peer.node.doctor import connection, examine
from peer.node.doctor.examine import Examination
from peer.node.doctor.finding import DoctorFinding, Readiness, Severity, failure, fine
from peer.node.doctor.guest import at_any_port, temporary_node, temporary_options
from peer.node.doctor.home import RunningDaemon
from peer.node.doctor.request import NO_RUN, NamedRun
from peer.observe.status.notices import read_status
from peer.run.options import PeerOptions
from peer.run.ticket import Ticket

PEER = "12D3KooWGcHvVxGGEhRBGqvDzRFqsZZMnhqSMtx2QCGqNkkvB5dC"


@pytest.fixture(autouse=True)
def connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine appear to have a network."""
    monkeypatch.setattr(connection, "connection", lambda: fine("connection", "there is a route"))


def examination(home: Path, told: list[DoctorFinding], **options: Any) -> Examination:
    join = PeerOptions(home=home, run_id=NO_RUN, host_maddrs=("/ip4/127.0.0.1/tcp/0",), lan=False, **options)
    return Examination(options=join, with_run=False, torch_check=lambda: "2.13.0", on_finding=told.append)


def found(told: list[DoctorFinding], what: str) -> DoctorFinding:
    return next(one for one in told if one.what == what)


def network(*findings: DoctorFinding) -> Any:
    @contextlib.asynccontextmanager
    async def guest(*_: object) -> AsyncIterator[tuple[None, list[DoctorFinding]]]:
        yield None, list(findings)

    return lambda: (guest, None)


def test_all_findings_come_at_once_and_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A taken port, a wrong device, missing data and a failing p2pd are all reported by one run."""
    port = failure("port", AddressError("port 4811 is taken", "Choose another --port."))
    p2pd = failure("p2pd", DirectoryFailed("p2pd is missing"))
    monkeypatch.setattr(examine, "_network_modules", network(port, p2pd))
    monkeypatch.setattr(preflight.check_cuda, "__defaults__", ((),))
    told, notes = list[DoctorFinding](), list[str]()
    one = examination(tmp_path / "home", told, data_dir=tmp_path / "nowhere", device="cuda")
    one.on_step = notes.append
    asyncio.run(one.run())
    wrong = {finding.what for finding in told if finding.severity is Severity.ERROR}
    assert wrong == {"port", "p2pd", "data", "device"}
    assert notes == ["starting the network side"]
    assert one.readiness is Readiness.NO
    assert one.findings == told
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_torch_does_not_hide_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> str:
        raise TorchWrong("torch is not installed")

    def no_torch(options: PeerOptions) -> None:
        raise ModuleNotFoundError("No module named 'torch'")

    monkeypatch.setattr(examine, "_volunteer_checks", no_torch)
    told = list[DoctorFinding]()
    one = examination(tmp_path / "home", told)
    one.torch_check = check
    asyncio.run(one.run())
    assert [finding.what for finding in told if finding.severity is Severity.ERROR] == ["torch"]
    assert found(told, "network").measured == "not checked: it needs torch"
    assert {"home", "disk", "memory", "kernels"} <= {finding.what for finding in told}


def test_another_torch_that_loads_may_be_of_no_use_to_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> str:
        raise TorchWrong("torch 2.12.0 is installed, this program is made for torch 2.13.0")

    def modules() -> None:
        raise AttributeError("module 'torch' has no attribute 'Tensor'")

    monkeypatch.setattr(examine, "_network_modules", modules)
    told = list[DoctorFinding]()
    one = examination(tmp_path / "home", told)
    one.torch_check = check
    asyncio.run(one.run())
    assert found(told, "network").fix == "Install the right torch first."
    assert [finding.what for finding in told if finding.severity is Severity.ERROR] == ["torch"]


def test_a_check_that_fails_or_hangs_is_a_finding(tmp_path: Path) -> None:
    async def fails() -> None:
        raise ZeroDivisionError("by zero")

    async def hangs() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        assert await one._checked("first", 5.0, fails()) is None
        assert await one._checked("second", 0.01, hangs()) is None

    told = list[DoctorFinding]()
    one = examination(tmp_path, told)
    asyncio.run(main())
    assert found(told, "first").measured == "not checked: ZeroDivisionError: by zero"
    assert found(told, "first").severity is Severity.ERROR
    assert found(told, "second").measured == "not checked: it did not end within 0 s"
    assert one.readiness is Readiness.NO


def test_no_temporary_folder_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "_network_modules", network())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    told = list[DoctorFinding]()
    one = examination(tmp_path / "home", told)
    asyncio.run(one.run())
    assert "no temporary folder can be made" in found(told, "temporary").measured
    assert "TMPDIR" in found(told, "temporary").fix
    assert one.readiness is Readiness.NO
    assert found(told, "disk")


@pytest.mark.processes
def test_a_taken_port_is_found_and_the_guest_goes_on_at_another(tmp_path: Path) -> None:
    """Uses the real transport and p2pd, at a port on which another socket listens."""

    async def main() -> tuple[list[DoctorFinding], list[DoctorFinding]]:
        with socket.create_server(("127.0.0.1", 0)) as holder:
            port = holder.getsockname()[1]
            options = examination(tmp_path, [], port=port).options
            async with temporary_node(options, tmp_path / "guest", None) as (node, stranger):
                assert node is not None
                assert node.port != port
            async with temporary_node(
                options, tmp_path / "guest", RunningDaemon("4711", read_status({"run": "x"}))
            ) as (
                _,
                own,
            ):
                return stranger, own

    stranger, own = asyncio.run(main())
    assert [(one.what, one.severity) for one in stranger] == [("port", Severity.ERROR), ("p2pd", Severity.OK)]
    assert "another program holds this port" in stranger[0].measured
    assert [(one.what, one.severity) for one in own] == [("port", Severity.OK), ("p2pd", Severity.OK)]
    assert "process 4711 of this home runs" in own[0].measured


def test_a_guest_listens_at_free_ports_where_the_asked_ones_are_taken(tmp_path: Path) -> None:
    options = PeerOptions(home=tmp_path, run_id=NO_RUN, port=4811, host_maddrs=("/ip4/0.0.0.0/tcp/4810",))
    asked = temporary_options(options, tmp_path / "guest")
    assert (asked.port, asked.home) == (4811, tmp_path / "guest")
    assert (at_any_port(asked).port, at_any_port(asked).host_maddrs) == (0, ("/ip4/0.0.0.0/tcp/0",))


def test_a_ticket_that_cannot_be_read_is_a_finding() -> None:
    named = NamedRun.of("peerswnotaticket")
    assert named.ticket is None
    assert [(one.what, one.severity) for one in named.findings] == [("ticket", Severity.ERROR)]


def test_a_ticket_names_run_and_addresses(tmp_path: Path) -> None:
    address = f"/ip4/192.0.2.7/tcp/4001/p2p/{PEER}"
    named = NamedRun.of(Ticket(b"R" * 32, (address,)).encode())
    options = named.within(PeerOptions(home=tmp_path, run_id=NO_RUN))
    assert (options.run_id, options.initial_peers) == (b"R" * 32, (address,))
    assert NamedRun.of(None).within(options) is options
