"""The compose file follows the Compose specification and our own promises about it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from peer.cli.main import peer
from peer.run.ticket import Ticket
from tests.docker.compose_file import DOCKER, interpolated, services

TEXT = (DOCKER / "compose.yml").read_text()
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
SERVICES = services({})
REPLICAS = ("peer", "crashing", "peer-gpu")
OURS = ("setup", "bootstrap", *REPLICAS)
PROFILES = {
    "setup": ["swarm", "chaos", "gpu"],
    "bootstrap": ["swarm", "chaos", "gpu"],
    "peer": ["swarm", "chaos"],
    "crashing": ["chaos"],
    "peer-gpu": ["gpu"],
}


def schema() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((Path(__file__).parent / "compose-spec.json").read_text()))


def test_it_keeps_to_the_specification_as_written_and_as_interpolated() -> None:
    parsed = yaml.safe_load(TEXT)
    for document in (parsed, interpolated(parsed, {})):
        assert [error.message for error in schema().iter_errors(document)] == []


def test_the_schema_would_tell() -> None:
    broken = interpolated(yaml.safe_load(TEXT), {})
    broken["services"]["peer"]["restrat"] = "always"
    assert list(schema().iter_errors(broken))


def test_variables_have_defaults() -> None:
    assert set(re.findall(r"\$\{?\w+\}?(?!:-)", re.sub(r"\$\{\w+:-[^}]*\}", "", TEXT))) == set()
    assert services({"PEER_REPLICAS": "7"})["peer"]["deploy"]["replicas"] == "7"
    assert interpolated(["$$(cat x) ${A:-1}${B:-}"], {"B": "2"}) == ["$(cat x) 12"]


@pytest.mark.parametrize("name", OURS)
def test_every_command_is_one_that_exists(name: str) -> None:
    """The program itself parses each command, but starts nothing."""
    command = SERVICES[name].get("command")
    if name == "setup":
        assert SERVICES[name]["entrypoint"] == ["peer-setup"]
        return
    chosen = peer.get_command(None, command[0])  # type: ignore[arg-type]
    assert chosen is not None
    context = chosen.make_context(command[0], command[1:])
    assert context.params["host_maddrs"] == ("/ip4/0.0.0.0/tcp/4810",)


def test_what_is_waited_for() -> None:
    done, healthy = {"condition": "service_completed_successfully"}, {"condition": "service_healthy"}
    assert SERVICES["bootstrap"]["depends_on"] == {"setup": done}
    for name in REPLICAS:
        assert SERVICES[name]["depends_on"] == {"setup": done, "bootstrap": healthy}
    assert SERVICES["setup"]["restart"] == "no"


def test_replicas_share_a_volume_of_homes_and_see_no_key_of_the_operator() -> None:
    targets = {name: {it.split(":")[1] for it in SERVICES[name]["volumes"]} for name in OURS}
    assert "/var/lib/peer" in targets["setup"] & targets["bootstrap"]
    for name in REPLICAS:
        assert targets[name] == {"/srv/homes", "/srv/run"}
        assert "peer-replica" in SERVICES[name]["entrypoint"]
        assert SERVICES[name]["environment"]["PEER_HOME"] == "/tmp/home"
        assert "container_name" not in SERVICES[name]
        assert "ports" not in SERVICES[name], "a port of this machine belongs to one replica"
    for name in (*REPLICAS, "bootstrap"):
        assert "run:/srv/run:ro" in SERVICES[name]["volumes"]
    for folder in ("/var/lib/peer", "/srv/homes"):
        assert re.search(rf"install --directory --owner=10001 --group=10001 --mode=0700 .*{folder}\b", DOCKERFILE)


def test_the_base_images_are_those_of_the_dockerfile() -> None:
    for name in ("BASE", "BUILD_BASE"):
        (default,) = re.findall(rf"^ARG {name}=(\S+)$", DOCKERFILE, re.MULTILINE)
        assert re.fullmatch(r"python:3\.11\.\d+(-slim)?-bookworm", default)
        assert SERVICES["peer"]["build"]["args"][name] == default
    for name in SERVICES["peer"]["build"]["args"]:
        assert f"ARG {name}" in DOCKERFILE


def test_the_image_is_what_the_compose_file_says_of_it() -> None:
    assert "USER 10001:10001" in DOCKERFILE
    for script in ("setup", "replica"):
        assert f"COPY docker/{script}.sh /opt/peer/bin/peer-{script}" in DOCKERFILE
        assert os.access(DOCKER / f"{script}.sh", os.X_OK)


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_bounded_and_hardened(name: str) -> None:
    settings: dict[str, Any] = SERVICES[name]
    limits = settings["deploy"]["resources"]["limits"]
    assert float(limits["cpus"]) > 0
    assert re.fullmatch(r"\d+[MG]", limits["memory"])
    assert settings["cap_drop"] == ["ALL"]
    assert settings["security_opt"] == ["no-new-privileges:true"]
    assert not settings.get("privileged")
    if name not in ("setup", "grafana"):
        assert settings["read_only"] is True


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"setup", "crashing"}))
def test_success_stays_down_and_failure_is_tried_a_bounded_number_of_times(name: str) -> None:
    assert re.fullmatch(r"on-failure:[1-9]", SERVICES[name]["restart"])


def test_monitoring_is_a_choice_and_seen_from_this_machine_only() -> None:
    for name, settings in SERVICES.items():
        assert settings["profiles"] == PROFILES.get(name, ["monitoring"])
        assert all(port.startswith("127.0.0.1:") for port in settings.get("ports", []))
        if name not in OURS:
            assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", settings["image"])


def test_the_bootstrap_node_listens_where_the_ticket_points() -> None:
    address = SERVICES["setup"]["environment"]["PEER_BOOTSTRAP_ADDRESS"]
    words = SERVICES["bootstrap"]["command"]
    assert f"--announce-maddrs={address}" in words
    host, port = re.fullmatch(r"/dns4/(\w+)/tcp/(\d+)", address).groups()  # type: ignore[union-attr]
    assert host in SERVICES
    assert f"--host-maddrs=/ip4/0.0.0.0/tcp/{port}" in words
    known = "12D3KooWGSiADCaoj6ubvxzxyJKfjmK2RXCRoPTS1zNsYd9roxej"
    ticket = Ticket(bytes(32), (f"{address}/p2p/{known}",))
    assert Ticket.decode(ticket.encode()) == ticket
