"""The image's promises, read off the Dockerfile; and the reader itself, which the rehearsal goes by too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docker.dockerfile import Instruction, Stage, expand, lineage, pairs, parse, read

ROOT = Path(__file__).resolve().parents[2]
STAGES = read(ROOT / "docker" / "Dockerfile")
FINAL = STAGES[-1]


def step(name: str, stage: Stage = FINAL) -> Instruction:
    found = stage.last(name)
    assert found is not None, name
    return found


def everything() -> list[Instruction]:
    return [it for stage in STAGES for it in stage.steps]


def test_every_base_is_a_former_stage_or_pinned_to_a_full_version() -> None:
    names = {stage.name for stage in STAGES}
    outside = [stage.base for stage in STAGES if stage.base not in names]
    assert outside
    for image in outside:
        assert re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+-[\w-]+(@sha256:[0-9a-f]{64})?", image), image


def test_it_does_not_run_as_root() -> None:
    uid, gid = step("USER").text.split(":")
    assert int(uid) >= 10_000
    assert int(gid) >= 10_000
    users = next(it.text for it in FINAL.steps if it.name == "RUN")
    assert f"--uid {uid} " in users
    assert f"--owner={uid} --group={gid} --mode=0700 {step('VOLUME').words[0]}" in users
    after = FINAL.steps[FINAL.steps.index(step("USER")) :]
    assert not {it.name for it in after} & {"RUN", "COPY", "ADD"}, "what comes after USER would belong to it"


@pytest.mark.parametrize("name", ["ENTRYPOINT", "CMD", "HEALTHCHECK", "VOLUME"])
def test_no_shell_stands_between_the_daemon_and_its_signals(name: str) -> None:
    assert step(name).exec_form


def test_it_ends_on_the_signal_that_drains() -> None:
    assert step("STOPSIGNAL").text == "SIGTERM"


def test_health_is_what_the_daemon_answers() -> None:
    check = step("HEALTHCHECK")
    assert check.exec_form == ["peer", "status", "--json"]
    assert {"interval", "timeout", "start-period", "retries"} <= set(check.flags)


def test_the_home_is_a_volume() -> None:
    environment = pairs(step("ENV"))
    assert step("VOLUME").exec_form == [environment["PEER_HOME"]]
    assert environment["PATH"].startswith("/opt/peer/bin:")
    assert step("ENTRYPOINT").exec_form == ["peer"]


def test_build_tools_stay_in_the_build_stage() -> None:
    built = [it for it in lineage(STAGES, FINAL) if it is not FINAL]
    assert all(it.name != "build" for it in built)
    assert [it.words for it in FINAL.steps if it.flags.get("from") == "build"] == [["/opt/peer", "/opt/peer"]]
    assert "pip uninstall --yes" in next(it.text for it in FINAL.steps if it.name == "RUN")
    assert not any("apt-get" in it.text for it in everything())


def test_every_installation_is_pinned() -> None:
    installs = [it.text for it in everything() if it.name == "RUN" and " install " in it.text and "pip" in it.text]
    assert installs
    for command in installs:
        assert command.count("-c constraints.txt") == command.count("/python install "), command


def test_no_host_and_no_secret_in_any_file_of_the_image() -> None:
    for path in [*(ROOT / "docker").glob("*"), ROOT / ".dockerignore"]:
        if path.is_file():
            assert not re.search(r"https?://(?!\{)|password|secret|token=", path.read_text(), re.I), path
    assert all("=" not in it.text for it in everything() if it.name == "ARG"), "an index has no default but pip's own"


def test_what_is_copied_is_there_and_not_ignored() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    sources = {word for it in everything() if it.name == "COPY" and "from" not in it.flags for word in it.words[:-1]}
    assert sources == let_in
    assert all((ROOT / source).exists() for source in sources)
    assert (ROOT / "docker" / "setup.sh").stat().st_mode & 0o111 == 0o111


def test_continued_lines_and_comments() -> None:
    (stage,) = parse('FROM a:1 AS b\nRUN one \\\n# why\n    && two\nCMD ["x", "y z"]\nENV A="1 2" B=$A\n')
    assert (stage.base, stage.name) == ("a:1", "b")
    assert [it.name for it in stage.steps] == ["RUN", "CMD", "ENV"]
    assert stage.steps[0].text.split() == ["one", "&&", "two"]
    assert stage.steps[1].exec_form == ["x", "y z"]
    assert pairs(stage.steps[2]) == {"A": "1 2", "B": "$A"}


def test_flags_and_forms() -> None:
    (stage,) = parse('FROM a\nCOPY --from=build --chown=1:1 /x /y\nHEALTHCHECK --retries=3 CMD ["a"]\nCMD echo "a b"\n')
    copy, health, command = stage.steps
    assert copy.flags == {"from": "build", "chown": "1:1"}
    assert copy.words == ["/x", "/y"]
    assert health.exec_form == ["a"]
    assert command.exec_form is None
    assert command.words == ["echo", "a b"]


def test_the_last_of_a_kind_counts() -> None:
    (stage,) = parse("FROM a\nUSER 1\nUSER 2\n")
    assert step("USER", stage).text == "2"
    assert stage.last("CMD") is None


def test_what_is_not_understood_is_refused() -> None:
    for text in ("RUN x\n", "# syntax=docker/dockerfile:1\nFROM a\n", "FROM a\nRUN x \\\n"):
        with pytest.raises(ValueError, match=r"before the first FROM|directive|continued"):
            parse(text)


def test_variables() -> None:
    assert expand("$A/${B}-$C", {"A": "1", "B": "2"}) == "1/2-"


def test_a_stage_is_built_upon_those_before_it() -> None:
    stages = parse("FROM x AS a\nFROM a AS b\nFROM y AS c\nFROM b\n")
    assert [it.name or "last" for it in lineage(stages, stages[-1])] == ["a", "b", "last"]
