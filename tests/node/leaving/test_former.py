"""A daemon that is started while the former daemon of its home is still leaving."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from peer.errors import HomeBusy
from peer.node.control import ControlServer
from peer.node.leaving import former
from peer.node.leaving.former import wait_for_previous_daemon
from peer.run.home import Home


def test_one_that_leaves_is_waited_for(tmp_path: Path) -> None:
    said = list[str]()

    async def main() -> None:
        home, asked, gone = Home(tmp_path), 0, asyncio.Event()

        async def answer(command: str, arguments: Any) -> dict[str, Any]:
            nonlocal asked
            asked += 1
            if asked == 3:
                gone.set()
            return {"leaving": {"announced_s": 3.0}}

        async def leave() -> None:
            with home.lock():
                server = ControlServer(home.control_socket, answer)
                await server.start()
                begun.set()
                await gone.wait()
                await server.close()

        begun = asyncio.Event()
        leaving = asyncio.create_task(leave())
        await begun.wait()
        await wait_for_previous_daemon(home, said.append)
        assert gone.is_set()
        with home.lock():
            pass
        await leaving

    asyncio.run(main())
    assert said == [f"waiting for process {os.getpid()}, which still leaves the run"]


def test_one_that_trains_is_not_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        home = Home(tmp_path)

        async def answer(command: str, arguments: Any) -> dict[str, Any]:
            return {"leaving": None}

        with home.lock():
            server = ControlServer(home.control_socket, answer)
            await server.start()
            await wait_for_previous_daemon(home, pytest.fail)
            with pytest.raises(HomeBusy), home.lock():
                pass
            await server.close()

    asyncio.run(main())


def test_nobody_is_waited_for_in_a_new_home_nor_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(former, "FORMER_S", 0.3)
    said = list[str]()

    async def main() -> None:
        home = Home(tmp_path / "home")
        await wait_for_previous_daemon(home, pytest.fail)
        with home.lock():
            await wait_for_previous_daemon(home, said.append)

    asyncio.run(main())
    assert len(said) == 1
