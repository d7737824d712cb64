"""Child processes that run Python execute nothing from the working folder, and find everything else."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from peer.discovery.dht_node.launch import launched
from peer.python_child import (
    popen_python,
    python_command,
    python_environment,
    run_python,
    start_python,
    without_options,
)
from tests.support.child_module import child_module

ROOT = Path(__file__).parents[1]
STANDARD = ("random", "resource", "json", "ctypes", "subprocess", "multiprocessing", "typing")
SHADOWING = (*STANDARD, "click", "torch", "numpy")
"""Modules of Python and of other packages that an interpreter does not load when it starts."""
RAN = "code from the working folder ran"
PROBE = f"""
import multiprocessing, os, sys
from multiprocessing import resource_tracker

def load():
    for name in {STANDARD!r}:
        __import__(name)

if __name__ == "__main__":
    load()
    child = multiprocessing.get_context("spawn").Process(target=load)
    child.start()
    child.join()
    resource_tracker.ensure_running()
    assert child.exitcode == 0
    assert os.getcwd() not in sys.path
    print("fine", *sys.argv[1:], flush=True)
"""


@pytest.fixture
def shadow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder with files named like modules and programs, and a folder called `peer`."""
    folder = tmp_path / "work"
    (folder / "peer").mkdir(parents=True)
    for name in (*SHADOWING, "sitecustomize", "usercustomize", "peer/__init__"):
        (folder / f"{name}.py").write_text(f"raise SystemExit({RAN!r})")
    program = folder / "git"
    program.write_text(f"#!/bin/sh\necho {RAN}\n")
    program.chmod(0o700)
    monkeypatch.chdir(folder)
    return folder


def by_asyncio(module: str, *arguments: str) -> str:
    async def started() -> str:
        child = await start_python(module, *arguments, stdout=asyncio.subprocess.PIPE)
        return (await child.communicate())[0].decode()

    return asyncio.run(started())


def by_popen(module: str, *arguments: str) -> str:
    with popen_python(module, *arguments, stdout=subprocess.PIPE, text=True) as child:
        return str(child.communicate()[0])


def by_run(module: str, *arguments: str) -> str:
    return str(run_python(module, *arguments, stdout=subprocess.PIPE, text=True, check=False).stdout)


@pytest.mark.processes
@pytest.mark.parametrize("how", [by_asyncio, by_popen, by_run])
def test_a_child_and_its_own_children_run_nothing_of_the_working_folder(
    shadow: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[..., str]
) -> None:
    module = child_module(shadow.parent, monkeypatch, PROBE)
    monkeypatch.setenv("PYTHONPATH", f":{os.environ['PYTHONPATH']}:.:../work")
    assert how(module, "1", "2") == "fine 1 2\n"


@pytest.mark.processes
def test_the_launcher_of_p2pd_runs_nothing_of_the_working_folder(shadow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ".")
    command = launched(["/bin/echo", "p2pd"], files=64, heap=2**20, data=2**30)
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "p2pd\n"


@pytest.mark.processes
@pytest.mark.parametrize("start", [(sys.executable, "-m", "peer"), (str(Path(sys.executable).parent / "peer"),)])
def test_the_program_itself_runs_nothing_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: tuple[str, ...]
) -> None:
    """Excludes what the interpreter and `python -m` import before the program begins."""
    for name in SHADOWING:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit({RAN!r})")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ":/nowhere")
    done = subprocess.run([*start, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


LEFT = """
import json, os, shutil, subprocess, sys
from peer.python_child import SEARCH_VARIABLES, leave_working_folder
leave_working_folder()
facts = {name: os.environ.get(name) for name in (*SEARCH_VARIABLES, "PYTHONSAFEPATH")}
print(json.dumps(facts | {"path": sys.path, "git": shutil.which("git")}))
"""


def left(shadow: Path, *start: str, **env: str) -> dict[str, Any]:
    """Return the results of a process that has left the working folder."""
    command = [sys.executable, *start, "-c", LEFT]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | env
    done = subprocess.run(command, cwd=shadow.parent, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.processes
def test_a_process_leaves_the_working_folder(shadow: Path) -> None:
    here, other = str(shadow.parent), str(shadow.parent / "other")
    plain = left(shadow)
    assert plain["PYTHONSAFEPATH"] == "1"
    assert not {"", here} & set(plain["path"])
    mixed = left(
        shadow, PYTHONPATH=f"{other}::below:.", PATH=f":work:{os.environ['PATH']}", LD_LIBRARY_PATH=f"{other}:"
    )
    assert mixed["PYTHONPATH"] == mixed["LD_LIBRARY_PATH"] == other
    assert mixed["PATH"] == os.environ["PATH"]
    assert mixed["git"] != f"{here}/work/git"
    assert other in mixed["path"]
    assert not {"", ".", "below", here, f"{here}/below"} & set(mixed["path"])
    alone = left(shadow, PYTHONPATH=":", LD_LIBRARY_PATH="")
    assert alone["PYTHONPATH"] is alone["LD_LIBRARY_PATH"] is None


@pytest.mark.processes
def test_an_absolute_entry_stays_even_if_it_is_the_working_folder(shadow: Path) -> None:
    here = str(shadow.parent)
    for entries in (here, f".:{here}"):
        assert here in left(shadow, "-P", PYTHONPATH=entries)["path"]


@pytest.mark.processes
def test_a_child_finds_the_packages_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child must find packages of `pip install --user`, which do not exist in a virtual environment."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    place = tmp_path / "lib" / version / "site-packages"
    place.mkdir(parents=True)
    (place / "installed_by_the_user.py").write_text("print('found')")
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path))
    command = python_command("installed_by_the_user", python=sys._base_executable)  # type: ignore[attr-defined]
    env = python_environment("installed_by_the_user")
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout == "found\n"


def test_a_relative_home_lends_no_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("HOME", "."), ("PYTHONUSERBASE", "lent")):
        with monkeypatch.context() as patch:
            patch.setattr("site.USER_BASE", None)
            patch.delenv("PYTHONUSERBASE", raising=False)
            patch.setenv(name, value)
            assert python_environment("peer")["PYTHONNOUSERSITE"] == "1"


def test_only_a_checkout_is_named_to_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise packages in site-packages would come before the standard library and shadow its modules."""
    monkeypatch.setenv("PYTHONPATH", "/given:")
    assert python_environment("click")["PYTHONPATH"] == "/given"
    assert python_environment("benchmarks.codecs")["PYTHONPATH"] == f"{ROOT}{os.pathsep}/given"
    assert "PYTHONPATH" not in python_environment("click", {"PYTHONPATH": ""})


def test_options_of_the_person_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PEER_DATA", "PEER_HOME", "PEER_DEVICE", "PEER_KERNELS", "OTHER"):
        monkeypatch.setenv(name, name)
    ours = {name for name in without_options("PEER_DEVICE") if name.startswith("PEER_")}
    assert ours == {"PEER_DEVICE", "PEER_KERNELS", "PEER_CONFIG"}
    assert without_options()["OTHER"] == "OTHER"


# -- every other start of the tree -------------------------------------------------------------------------------------

FOLDERS = ("peer", "benchmarks", "bootstrap", "examples", "docker", "docs")
STARTS = re.compile(
    r"(subprocess\.(run|Popen|call|check_call|check_output|getoutput|getstatusoutput)"
    r"|asyncio\.(subprocess\.)?create_subprocess_(exec|shell)"
    r"|os\.(exec|spawn|posix_spawn)\w*|os\.(system|popen|fork|forkpty)|pty\.\w+"
    r"|(torch\.)?multiprocessing\.(?!(Lock|current_process)$)\w+(\.\w+)*|concurrent\.futures\.(process\.)?ProcessPoolExecutor"
    r"|torch\.distributed\.(run|launch|elastic)\.?.*|runpy\.\w+"
    r"|.*\.subprocess_(exec|shell)|.*\.DataLoader)"
)
"""Calls that can start a process that runs Python, and `runpy`, which runs a module in this process."""
WORDS = re.compile(
    r"subprocess|exec[lv]|spawn|system\b|popen|fork|\bpty\b|multiprocessing|ProcessPool|runpy|torch\.distributed|DataLoader"
)
"""Every file that uses one of STARTS contains one of these words."""
PYTHON_CHILD = "peer/python_child.py"
OTHER_PROGRAMS = {
    "benchmarks/control_bytes.py": "nft",
    "benchmarks/doctor_faults.py": "nsenter, and python_command with another checkout's code first",
    "benchmarks/front.py": "git, and this file with another checkout's code",
    "benchmarks/nat_network.py": "ip, nft",
    "benchmarks/result.py": "git",
    "benchmarks/slow_home.py": "this file, with another checkout's code",
    "benchmarks/upnp_router.py": "miniupnpd, nft",
    "benchmarks/user_service.py": "mount, systemd, systemctl, sh",
    "docker/try_swarm.py": "docker",
    "examples/lightning_trainer.py": "a DataLoader without workers",
    "peer/cli/service.py": "tail",
    "peer/lab/bench/machine.py": "git",
    "peer/lab/bench/callback_times.py": "runpy, in a process that python_child has started",
    "peer/lab/localswarm/skewed_clock.py": "runpy, in a process that python_child has started",
    "peer/service/systemd.py": "systemctl",
}
"""Other programs that these files start. No other file may start a process directly."""
NAME_PYTHON = {
    "benchmarks/doctor_faults.py",  # removes the interpreter's path from the output of doctor
    "benchmarks/front.py",
    "benchmarks/slow_home.py",
    "peer/cli/installed.py",  # commands for a person to run
    "peer/discovery/dht_node/process.py",
    "peer/installation.py",
    "peer/node/doctor/machine.py",
    "peer/service/install.py",  # for `python_command` in the service's file
}
"""Files that use the path of the running interpreter as text, or for the purpose in their comment."""


def imported(tree: ast.AST) -> dict[str, str]:
    """Return imported name -> the full name that it stands for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                first = one.name.partition(".")[0]
                names[one.asname or first] = one.name if one.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return names


def dotted(node: ast.AST, names: dict[str, str]) -> str:
    """Return the full name of an expression, such as `subprocess.run`. Empty: the expression is not a name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value, names)}.{node.attr}"
    return names.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def called(tree: ast.AST) -> Iterator[str]:
    """Yield the names of everything that is called, passed to a call or bound to another name."""
    names = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from (dotted(one, names) for one in (node.func, *node.args, *(word.value for word in node.keywords)))
        elif isinstance(node, ast.Assign):
            yield dotted(node.value, names)


def test_no_other_part_starts_python() -> None:
    starting, naming = set[str](), set[str]()
    for file in (file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")):
        text, name = file.read_text(), str(file.relative_to(ROOT))
        if WORDS.search(text) and any(map(STARTS.fullmatch, called(ast.parse(text)))):
            starting.add(name)
        if re.search(r"\bexecutable\b|_base_executable", text):
            naming.add(name)
    assert starting == {PYTHON_CHILD, *OTHER_PROGRAMS}
    assert naming == {PYTHON_CHILD, *NAME_PYTHON}


def test_the_search_for_starts_finds_each_way() -> None:
    for text in (
        "import subprocess as s\ns.run(['x'])",
        "from subprocess import Popen as P\nP('x')",
        "import subprocess\nto_thread(subprocess.check_output, 'x')",
        "import subprocess\nstart = subprocess.Popen",
        "import asyncio\nasyncio.create_subprocess_shell('x')",
        "from asyncio import subprocess\nsubprocess.create_subprocess_exec('x')",
        "import os\nos.execve('x')",
        "from os import posix_spawn\nposix_spawn('x')",
        "import multiprocessing as mp\nmp.get_context('spawn').Process()",
        "from multiprocessing import Process\nProcess()",
        "from torch import multiprocessing\nmultiprocessing.spawn(f)",
        "from concurrent.futures import ProcessPoolExecutor\nProcessPoolExecutor()",
        "import concurrent.futures\nconcurrent.futures.ProcessPoolExecutor()",
        "loop().subprocess_exec('x')",
        "from torch.utils.data import DataLoader\nDataLoader(x)",
    ):
        assert any(STARTS.fullmatch(name) for name in called(ast.parse(text))), text


def test_no_script_or_page_starts_python_in_the_working_folder() -> None:
    """Fault: a script or a page would run `python -m peer`, which imports from the working folder. Files outside the
    wheel may, because they run in their checkout."""
    wrong = re.compile(r"^ *(\$ |exec |ExecStart=|CMD |ENTRYPOINT )?\S*python[0-9.]* +-m peer\b", re.MULTILINE)
    assert wrong.search("text\n    exec python3 -m peer join")
    for folder in ("bootstrap", "docker", "docs", "examples", "peer/service"):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in (".md", ".sh", ".yml", ".service", ".py", "") and file.is_file():
                assert not wrong.search(file.read_text()), file
