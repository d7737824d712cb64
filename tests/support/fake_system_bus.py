"""A private D-Bus system bus with fake logind, UPower and NetworkManager services, as far as `peer.guest` uses them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from jeepney import DBusAddress, HeaderFields, MessageType, message_bus, new_error, new_method_return, new_signal
from jeepney.io.asyncio import DBusConnection, DBusRouter, Proxy, open_dbus_connection

from peer.guest.sources import LOGIN, NETWORK, POWER

CONFIG = """<busconfig><type>session</type><listen>unix:path={socket}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/>
</policy></busconfig>"""
UNKNOWN = "org.freedesktop.DBus.Error.UnknownProperty"
SEATED, SEATLESS = [("2", 1000, "user", "seat0", "/s/2")], [("3", 1000, "user", "", "/s/3")]

PROPERTIES = {
    "IdleHint": (LOGIN, "b"),
    "IdleSinceHint": (LOGIN, "t"),
    "OnBattery": (POWER, "b"),
    "Metered": (NETWORK, "u"),
}


class FakeSystem:
    """The fake services. `facts`: property -> value. A missing name is a property that the service does not have."""

    def __init__(self, connection: DBusConnection, address: str) -> None:
        self._connection = connection
        self.address = address
        """Value for DBUS_SYSTEM_BUS_ADDRESS."""
        self.facts: dict[str, Any] = {"IdleHint": True, "IdleSinceHint": 10**15, "OnBattery": False, "Metered": 2}
        self.sessions = SEATED

    async def change(self, name: str, value: Any) -> None:
        """Change a property and send the PropertiesChanged signal."""
        self.facts[name] = value
        place, kind = PROPERTIES[name]
        emitter = DBusAddress(place.path, interface="org.freedesktop.DBus.Properties")
        changed: tuple[str, dict[str, tuple[str, Any]], list[str]] = place.interface, {name: (kind, value)}, []
        await self._connection.send(new_signal(emitter, "PropertiesChanged", "sa{sv}as", changed))

    async def serve(self) -> None:
        """Answer method calls until cancelled."""
        while True:
            message = await self._connection.receive()
            if message.header.message_type is MessageType.method_call:
                await self._connection.send(self._answer(message))

    def _answer(self, message: Any) -> Any:
        if message.header.fields[HeaderFields.member] == "ListSessions":
            return new_method_return(message, "a(susso)", (self.sessions,))
        name = message.body[1]
        if name not in self.facts:
            return new_error(message, UNKNOWN)
        return new_method_return(message, "v", ((PROPERTIES[name][1], self.facts[name]),))


@contextlib.asynccontextmanager
async def fake_system(folder: Path) -> AsyncIterator[FakeSystem]:
    """Run the bus and its services within the context. `folder`: for the socket."""
    socket, config = folder / "bus", folder / "bus.conf"
    config.write_text(CONFIG.format(socket=socket))
    # Without the variable of a session's bus, which it would look at.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DBUS_")}
    daemon = await asyncio.create_subprocess_exec(
        *("dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile", "--print-address"),
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        assert daemon.stdout is not None
        async with asyncio.timeout(60):
            await daemon.stdout.readline()
        address = f"unix:path={socket}"
        async with await open_dbus_connection(address) as connection:
            async with DBusRouter(connection) as router:
                for place in (LOGIN, POWER, NETWORK):
                    await Proxy(message_bus, router).RequestName(place.service)
            system = FakeSystem(connection, address)
            serving = asyncio.create_task(system.serve())
            try:
                yield system
            finally:
                serving.cancel()
                await asyncio.wait({serving})
    finally:
        with contextlib.suppress(ProcessLookupError):
            daemon.terminate()
        await daemon.wait()
