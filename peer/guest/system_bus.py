"""Client of services on the system's D-Bus."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from jeepney import DBusAddress, MatchRule, MessageType, Properties, message_bus, new_method_call
from jeepney.auth import AuthenticationError
from jeepney.io.asyncio import DBusConnection, DBusRouter, Proxy, open_dbus_connection
from jeepney.io.common import RouterClosed
from jeepney.wrappers import DBusErrorResponse

from peer.guest.conditions import FactUnavailable, ServicePlace

ANSWER_S = 2.0
"""Timeout of one request in seconds, including the connection if there is none yet."""
_BROKEN = (OSError, EOFError, RouterClosed, AuthenticationError, RuntimeError, ValueError)


class SystemBus:
    """A `SystemServices` over one D-Bus connection, which is opened by the first request and reopened after a failure.

    It is also a `ChangeNotice`: it subscribes to changes of every object that was read."""

    def __init__(self) -> None:
        self._connection: DBusConnection | None = None
        self._router: DBusRouter | None = None
        self._watched: set[ServicePlace] = set()
        self._changes: asyncio.Queue[Any] = asyncio.Queue(1)

    async def get(self, place: ServicePlace, name: str) -> Any:
        """Return the value of a property. Raises FactUnavailable."""
        return (await self._answer(place, Properties(_address(place)).get(name)))[0][1]

    async def call(self, place: ServicePlace, method: str) -> Any:
        """Call a method without arguments and return its result. Raises FactUnavailable."""
        return (await self._answer(place, new_method_call(_address(place), method)))[0]

    async def changed(self, within_s: float) -> None:
        """Return when an object that was read reports a change, or after `within_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changes.get()

    async def close(self) -> None:
        """Close the connection. The next request opens another. Never raises."""
        connection, router = self._connection, self._router
        self._connection = self._router = None
        self._watched.clear()
        if router is not None:
            with contextlib.suppress(*_BROKEN):
                await router.__aexit__(None, None, None)
        if connection is not None:
            with contextlib.suppress(*_BROKEN):
                await connection.close()

    async def _answer(self, place: ServicePlace, message: Any) -> Any:
        try:
            async with asyncio.timeout(ANSWER_S):
                router = await self._opened()
                await self._watch(router, place)
                reply = await router.send_and_get_reply(message)
        except TimeoutError as error:
            await self.close()
            raise FactUnavailable(f"{place.service} does not answer on the system bus") from error
        except DBusErrorResponse as error:
            raise FactUnavailable(f"{place.service} does not answer on the system bus: {error.name}") from error
        except _BROKEN as error:
            await self.close()
            raise FactUnavailable(f"the system bus cannot be reached: {error or type(error).__name__}") from error
        if reply.header.message_type is MessageType.error:
            name = DBusErrorResponse(reply).name
            raise FactUnavailable(f"{place.service} does not answer on the system bus: {name.rpartition('.')[2]}")
        return reply.body

    async def _opened(self) -> DBusRouter:
        if self._router is None:
            self._connection = await open_dbus_connection("SYSTEM")
            self._router = DBusRouter(self._connection)
        return self._router

    async def _watch(self, router: DBusRouter, place: ServicePlace) -> None:
        """Subscribe to changes of this object, once per connection."""
        if place in self._watched:
            return
        rule = MatchRule(
            type="signal",
            interface="org.freedesktop.DBus.Properties",
            member="PropertiesChanged",
            path=place.path,
        )
        await Proxy(message_bus, router).AddMatch(rule)
        router.filter(rule, queue=self._changes)  # a full queue drops this change: the queued one suffices
        self._watched.add(place)


def _address(place: ServicePlace) -> DBusAddress:
    return DBusAddress(place.path, place.service, place.interface)
