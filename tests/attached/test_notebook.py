"""A loop in a notebook, whose kernel runs an event loop on the thread that executes the cells."""

from __future__ import annotations

import asyncio
import json
import textwrap
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from peer import identity as identities
from peer.lab.localswarm.processes import Daemon, start_bootstrap, start_peer
from peer.observe.event_codec import read_lines
from peer.observe.events import Leaving, RoundEnded
from peer.run.home import Home
from peer.run.manifest import default_text, sign_text
from peer.run.overrides import apply_overrides

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240


class Notebook:
    """A notebook whose cells are executed one after the other in one kernel."""

    def __init__(self, folder: Path) -> None:
        self._book = nbformat.v4.new_notebook()
        self.client = NotebookClient(
            self._book, timeout=DEADLINE_S, resources={"metadata": {"path": str(folder)}}, shutdown_kernel="immediate"
        )

    async def run(self, source: str) -> str:
        """Execute a cell. Return its output, or the value of its last expression, as HTML if it has that form."""
        cell = nbformat.v4.new_code_cell(textwrap.dedent(source), metadata={"tags": ["raises-exception"]})
        self._book.cells.append(cell)
        await self.client.async_execute_cell(cell, len(self._book.cells) - 1)
        return "".join(_text_of(output) for output in cell.outputs)


def _text_of(output: Any) -> str:
    if output.output_type == "stream":
        return str(output.text) if output.name == "stdout" else ""
    if output.output_type == "error":
        return f"{output.ename}: {output.evalue}"
    return str(output.data.get("text/html", output.data.get("text/plain", "")))


PLAYED = f"""
    import os, signal, sys
    from pathlib import Path
    sys.path.insert(0, {str(ROOT)!r})
    import pytest, torch
    import peer
    from peer.attached import swarm as attached
    from tests.attached.test_callbacks import ROUNDS, TICKET, PlayedRun
    from tests.attached.test_loop import TENSORS
    attached.Ticket.named = lambda text: attached.Ticket
    attached.Ticket.encode = lambda: TICKET
    folder = Path("run")
    folder.mkdir()
    run = PlayedRun(folder)
    attached.DaemonChild = run.start
"""


def test_a_loop_in_a_notebook(tmp_path: Path) -> None:
    async def main() -> None:
        book = Notebook(tmp_path)
        async with book.client.async_setup_kernel():
            assert await book.run("%load_ext autoreload\n%autoreload 2") == ""
            assert await book.run(PLAYED) == ""
            said = await book.run("attached._confirm('Take part?', ['what the run takes']) is None")
            assert said == "what the run takes\nTrue", "nobody is there to ask"
            await book.run("""
                parameters = {one.name: torch.zeros(one.shape) for one in TENSORS}
                swarm = peer.join(TICKET, parameters, None, home="home")
            """)
            assert (await book.run("swarm.status()")).startswith("NotRunning: "), "there is no daemon, but it was asked"
            loop = """
                for batch in swarm.until_end([torch.zeros(1, 8, dtype=torch.long)]):
                    swarm.log(loss=3.0 - swarm.round)
                    swarm.step()
                    if swarm.round == 1 and not interrupted:
                        interrupted = True
                        os.kill(os.getpid(), signal.SIGINT)
                print(swarm.round)
            """
            await book.run("interrupted = False")
            assert (await book.run(loop)).startswith("KeyboardInterrupt")
            assert await book.run("swarm.attached") == "True", "the run goes on between two cells"
            assert await book.run(loop) == await book.run("print(ROUNDS)")
            shown = await book.run("swarm")
            assert "<table>" in shown
            assert "<polyline" in shown
            assert (await book.run("swarm.leave(); swarm.over")) == "True"

    asyncio.run(main())


REAL = f"""
    import os, signal, sys
    sys.path.insert(0, {str(ROOT / "examples")!r})
    import torch
    from own_loop import MODEL, SourceText
    from transformers import AutoModelForCausalLM
    import peer

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_config(MODEL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    swarm = peer.join("@ticket", model, optimizer, home="home", options=peer.JoinOptions(agreed=True))

    def train(until):
        for tokens in swarm.until_end(SourceText()):
            loss = model(input_ids=tokens, labels=tokens).loss
            swarm.log(loss=loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if swarm.round >= until:
                os.kill(os.getpid(), signal.SIGINT)
"""
STATE = "import json; print(json.dumps([swarm.round, swarm.tokens, swarm.attached]))"


async def until_round(daemon: Daemon, round_: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (status := await daemon.status()) is None or (status["round"] or 0) < round_:
            await asyncio.sleep(0.2)


@pytest.mark.nightly
def test_an_interrupted_notebook_goes_on_and_a_restarted_kernel_resumes(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "run.toml"
        node, builtin = Daemon("node", tmp_path / "node"), Daemon("builtin", tmp_path / "builtin")
        operator = identities.load_or_create(Home(node.home).identity)
        settings = ["sync.clock=seconds", "sync_every=5", "total_rounds=1000", "eval_windows=16"]
        signed = sign_text(apply_overrides(default_text(), settings), operator, path)
        ticket = await start_bootstrap(node, path, min_peers=1)
        (tmp_path / "ticket").write_text(ticket)
        await start_peer(builtin, ticket, threads=1, speed=1.0, min_peers=1)
        journal = Home(tmp_path / "home").run(signed.run_id).journal
        try:
            book = Notebook(tmp_path)
            async with book.client.async_setup_kernel():
                assert "Error" not in (said := await book.run(REAL)), said
                first = json.loads(await book.run(STATE))[0]
                assert (await book.run(f"train({first + 3})")).startswith("KeyboardInterrupt")
                _, tokens, attached = json.loads(await book.run(STATE))
                assert tokens > 0
                assert attached
                assert (await book.run("swarm.status().role")) == "'peer'"
                await until_round(builtin, first + 6)
                assert (await book.run(f"train({first + 9})")).startswith("KeyboardInterrupt")
                assert "<polyline" in await book.run("swarm")
                tokens = json.loads(await book.run(STATE))[1]
            book = Notebook(tmp_path)
            async with book.client.async_setup_kernel():  # at once: the former daemon has just begun to leave
                assert "Error" not in (said := await book.run(REAL)), said
                first, resumed, _ = json.loads(await book.run(STATE))
                assert resumed == tokens
                assert (await book.run(f"train({first + 3})")).startswith("KeyboardInterrupt")
                await book.run("swarm.leave()")
        finally:
            await asyncio.gather(builtin.stop(10.0), node.stop(10.0))
        events = [line[0] for line in read_lines(journal) if line is not None]
        assert [one.reason for one in events if isinstance(one, Leaving)] == [
            "the program with the training loop ended",
            "told to leave",
        ]
        assert sum(isinstance(one, RoundEnded) and one.outcome == "exchanged" for one in events) >= 6

    asyncio.run(main())
