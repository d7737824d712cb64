"""What a rehearsed container is started with: the image's and the compose file's word, nothing of this machine's."""

from __future__ import annotations

from pathlib import Path

import pytest

from docker.container import Mount, Spec
from docker.rehearsal import Swarm


def spec(**changes: object) -> Spec:
    return Spec(**{"root": Path("/r o"), "command": ["a", "b c"], "environment": {"K": "v w"}} | changes)  # type: ignore[arg-type]


def test_the_command_keeps_its_words_user_and_environment() -> None:
    entered = spec(user="10001:10002", folder="/home").entering(["x"])
    assert entered[:3] == ["setpriv", "--reuid=10001", "--regid=10002"]
    assert entered[-6:] == ["env", "-i", "-C", "/home", "K=v w", "x"]
    last = spec().script("10.0.0.2").splitlines()[-1]
    assert last.startswith("exec chroot '/r o' setpriv ")
    assert last.endswith("'K=v w' a 'b c' </dev/null")


def test_dropped_privileges_cannot_be_gained_again() -> None:
    entered = spec(unprivileged=True).entering([])
    assert {"--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"} <= set(entered)
    assert "--no-new-privs" not in spec().entering([])


def test_a_read_only_root_is_closed_last_and_volumes_stay_open(tmp_path: Path) -> None:
    mounts = [Mount(tmp_path, "/data"), Mount(tmp_path, "/kept", True), Mount(None, "/tmp")]
    lines = spec(root=Path("/root-of-it"), read_only=True, mounts=mounts).script("10.0.0.2").splitlines()
    assert lines[-2] == "mount -o remount,bind,ro /root-of-it"
    assert f"mount --bind {tmp_path} /root-of-it/data" in lines
    assert "mount -o remount,bind,ro /root-of-it/data" not in lines
    assert "mount -o remount,bind,ro /root-of-it/kept" in lines
    assert "mount -t tmpfs tmpfs /root-of-it/tmp" in lines


def test_an_init_program_comes_first_only_where_asked() -> None:
    assert " /dev/init -- a " in spec(init=Path("/bin/tini")).script("").splitlines()[-1]
    assert "/dev/init" not in spec().script("")


@pytest.fixture
def swarm(tmp_path: Path) -> Swarm:
    for folder in ("srv/run", "var/lib/peer"):
        (tmp_path / "image" / folder).mkdir(parents=True)
    return Swarm(tmp_path, {"PEER_REPLICAS": "3"}, Path("/bin/tini"))


def test_a_service_gets_the_images_word_and_the_compose_files(swarm: Swarm) -> None:
    made = swarm._spec(swarm.services["peer"], "peer-1")
    assert made.command[:3] == ["peer", "join", "@/srv/run/ticket"]
    assert made.environment["PEER_HOME"] == "/var/lib/peer"
    assert made.environment["PATH"].startswith("/opt/peer/bin:")
    assert made.user == "10001:10001"
    assert made.read_only
    assert made.unprivileged
    assert made.init == Path("/bin/tini")
    setup = swarm._spec(swarm.services["setup"], "setup")
    assert setup.command == ["peer-setup"]
    assert setup.environment["PEER_BOOTSTRAP_ADDRESS"] == "/dns4/bootstrap/tcp/4810"
    assert "--min-peers=3" in swarm._spec(swarm.services["bootstrap"], "bootstrap").command


def test_replicas_share_the_run_and_nothing_else(swarm: Swarm) -> None:
    homes, runs = set(), set()
    for name in ("peer-1", "peer-2"):
        mounts = {it.target: it for it in swarm._spec(swarm.services["peer"], name).mounts}
        homes.add(mounts["/var/lib/peer"].source)
        runs.add(mounts["/srv/run"].source)
        assert mounts["/srv/run"].read_only
        assert not mounts["/var/lib/peer"].read_only
    assert len(homes) == 2
    assert len(runs) == 1
    bootstrap = {it.target: it for it in swarm._spec(swarm.services["bootstrap"], "bootstrap").mounts}
    assert bootstrap["/var/lib/peer"].source not in homes
