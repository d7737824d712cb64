"""The image's promises, read off the Dockerfile's lines. The engine itself is tried by `make docker-try`."""

from __future__ import annotations

import re

import pytest

from tests.docker.compose_file import DOCKER

ROOT = DOCKER.parent
LINES = [line for line in (DOCKER / "Dockerfile").read_text().replace("\\\n", " ").splitlines() if line[:1].isupper()]
STARTS = [number for number, line in enumerate(LINES) if line.startswith("FROM ")]
FINAL = LINES[STARTS[-1] :]


def rest(name: str) -> str:
    """Return the arguments of the last instruction with this name in the final stage."""
    return [line.removeprefix(name).strip() for line in FINAL if line.startswith(f"{name} ")][-1]


def test_it_does_not_run_as_root() -> None:
    uid, gid = rest("USER").split(":")
    assert int(uid) >= 10_000
    assert int(gid) >= 10_000
    assert f"--uid {uid} " in rest("RUN")
    after = FINAL[FINAL.index(f"USER {uid}:{gid}") :]
    assert not [line for line in after if line.startswith(("RUN", "COPY", "ADD"))], "it would belong to the user"


@pytest.mark.parametrize("name", ["ENTRYPOINT", "CMD", "VOLUME"])
def test_no_shell_stands_between_the_daemon_and_its_signals(name: str) -> None:
    assert re.fullmatch(r"\[.*\]", rest(name))


def test_it_drains_at_a_signal_and_health_is_what_the_daemon_answers() -> None:
    assert rest("STOPSIGNAL") == "SIGTERM"
    assert rest("HEALTHCHECK").endswith('CMD ["peer", "status", "--json"]')
    assert rest("ENTRYPOINT") == '["peer"]'
    assert f"PEER_HOME={rest('VOLUME')[2:-2]}" in rest("ENV")


def test_build_tools_stay_in_the_build_stage() -> None:
    assert [line for line in FINAL if "--from=" in line] == ["COPY --from=build /opt/peer /opt/peer"]
    assert "pip uninstall --yes" in rest("RUN")
    assert not any("apt-get" in line for line in LINES)


def test_every_installation_is_pinned() -> None:
    installs = [line for line in LINES if "pip install" in line]
    assert len(installs) == 2
    assert all("-c /wheels/constraints.txt" in line for line in installs)


def test_no_host_and_no_secret_in_any_file_of_the_image() -> None:
    for path in (DOCKER / "Dockerfile", DOCKER / "setup.sh", DOCKER / "replica.sh", ROOT / ".dockerignore"):
        assert not re.search(r"https?://|password|secret|token=", path.read_text(), re.I), path
    defaults = [line for line in LINES if line.startswith("ARG ") and "=" in line]
    assert [line.split("=")[0] for line in defaults] == ["ARG BASE", "ARG BUILD_BASE"], "an index has no default"


def test_what_is_copied_is_there_and_not_ignored() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = [line.split()[1:-1] for line in LINES if line.startswith("COPY ") and "--from=" not in line]
    sources = {word for words in copies for word in words}
    assert {source if not source.endswith(".sh") else "docker/*.sh" for source in sources - {"docker/wheels*"}} == (
        let_in - {"docker/wheels"}
    )
    assert all((ROOT / source).exists() for source in sources - {"docker/wheels*"})
