"""A temporary node: the network side of `peer join` with a key and a home of its own, used once. It announces no record
in the directory.

If the run requires invitations, the node proves the invited key, even while a daemon with that key runs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from peer.errors import AddressError, DirectoryFailed
from peer.identity import Identity, load
from peer.node.doctor.finding import DoctorFinding, failure, fine
from peer.node.doctor.home import RunningDaemon
from peer.node.open import LocalNode, OpenNode, open_node
from peer.run.options import NodeOptions, PeerOptions
from peer.user_folders import expand_user

_PORT = re.compile(r"/tcp/\d+")


def temporary_options(options: PeerOptions, home: Path) -> NodeOptions:
    """Return the options of the temporary node: those of the user's that concern the network."""
    return NodeOptions(
        home=home,
        initial_peers=options.initial_peers,
        host_maddrs=options.host_maddrs,
        announce_maddrs=options.announce_maddrs,
        lan=options.lan,
        port_mapping=options.port_mapping,
        port=options.port,
        max_upload=options.max_upload,
        max_download=options.max_download,
        relay=0,
        invitation=options.invitation,
    )


def at_any_port(options: NodeOptions) -> NodeOptions:
    """Return the options with free ports in place of the chosen ones."""
    return replace(options, port=0, host_maddrs=tuple(_PORT.sub("/tcp/0", one) for one in options.host_maddrs))


@contextlib.asynccontextmanager
async def temporary_node(
    options: PeerOptions, home: Path, daemon: RunningDaemon | None
) -> AsyncIterator[tuple[OpenNode | None, list[DoctorFinding]]]:
    """Open a temporary node within the context. Yields it with findings about its ports and p2pd. None: it cannot be
    opened.

    If a port is taken, the node uses another one."""
    async with contextlib.AsyncExitStack() as stack:
        asked, findings = temporary_options(options, home), list[DoctorFinding]()
        for chosen in (asked, at_any_port(asked)):
            try:
                node = await stack.enter_async_context(_opened(options, chosen))
            except AddressError as error:
                findings.append(_taken(error, daemon))
            except DirectoryFailed as error:
                findings.append(failure("p2pd", error))
                yield None, findings
                return
            else:
                if chosen is asked:
                    ports = f"exchange at {node.port}, DHT at {', '.join(node.directory.addresses()) or 'none'}"
                    findings.append(fine("port", ports))
                findings.append(fine("p2pd", f"started as process {node.directory.helper_pid}"))
                yield node, findings
                return
        yield None, findings


def _taken(error: AddressError, daemon: RunningDaemon | None) -> DoctorFinding:
    if daemon is not None:
        return fine("port", f"{error.found}: process {daemon.pid} of this home runs")
    return failure("port", error)


@contextlib.asynccontextmanager
async def _opened(options: PeerOptions, own: NodeOptions) -> AsyncIterator[OpenNode]:
    def quiet(text: str) -> None: ...

    key = expand_user(options.identity_path or options.home / "identity.key")
    invited = load(key) if options.invitation is not None and key.exists() else None
    local = LocalNode.of(own, options.run_id, quiet, invited or Identity.generate())
    async with open_node(local) as node:
        yield node
