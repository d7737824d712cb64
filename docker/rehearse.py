"""Carry the Dockerfile and the compose file out without a container engine.

    python -m docker.rehearse build --base ROOT --work DIR --build-arg TORCH_INDEX_URL=…
    python -m docker.rehearse up --work DIR --replicas 2

`build` runs the Dockerfile's own steps in copies of ROOT, an unpacked root filesystem that stands in for the base image
(it needs /usr/local/bin/python with pip). `up` starts what the compose file says, in namespaces and on a network of
their own, and looks: setup twice, health, exchanged rounds, metrics, SIGTERM. Linux, as root."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from docker.container import Container, Mount, Spec
from docker.dockerfile import Instruction, Stage, expand, pairs, read

REPOSITORY = Path(__file__).resolve().parents[1]
DOCKERFILE = REPOSITORY / "docker" / "Dockerfile"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Builder:
    """Runs one stage's steps in `root`, a copy of its base."""

    def __init__(self, root: Path, roots: dict[str, Path], given: dict[str, str], binds: list[Mount]) -> None:
        self._root, self._roots, self._given, self._binds = root, roots, given, binds
        self._arguments: dict[str, str] = {}
        self._environment = {"PATH": PATH}
        self._folder = "/"

    def run(self, stage: Stage) -> None:
        for step in stage.steps:
            print(f"  {step.name} {step.text[:100]}", flush=True)
            match step.name:
                case "ARG":
                    name, _, default = step.text.partition("=")
                    if (value := self._given.get(name, default)) or name in self._given:
                        self._arguments[name] = value
                case "ENV":
                    self._environment |= {k: expand(v, self._variables()) for k, v in pairs(step).items()}
                case "WORKDIR":
                    self._folder = step.text
                    self._inside(step.text).mkdir(parents=True, exist_ok=True)
                case "COPY":
                    self._copy(step)
                case "RUN":
                    self._shell(step.text)
                case "LABEL" | "USER" | "VOLUME" | "STOPSIGNAL" | "HEALTHCHECK" | "ENTRYPOINT" | "CMD":
                    pass  # of the image's configuration: `up` goes by it
                case other:
                    sys.exit(f"cannot carry out {other}")

    def _variables(self) -> dict[str, str]:
        return {**self._arguments, **self._environment}

    def _inside(self, path: str) -> Path:
        return self._root / os.path.normpath(os.path.join("/", self._folder, path)).lstrip("/")  # noqa: PTH118

    def _copy(self, step: Instruction) -> None:
        *sources, target = step.words
        origin = self._roots[step.flags["from"]] if "from" in step.flags else REPOSITORY
        for source in sources:
            found = origin / source.lstrip("/")
            if found.is_dir():
                into = self._inside(target)
                shutil.copytree(
                    found, into, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                into = self._inside(target) / found.name if target.endswith("/") else self._inside(target)
                shutil.copy(found, into)

    def _shell(self, command: str) -> None:
        spec = Spec(
            root=self._root,
            command=["/bin/sh", "-c", command],
            environment=self._variables(),
            folder=self._folder,
            mounts=[Mount(Path("/etc/resolv.conf"), "/etc/resolv.conf", True), *self._binds],
            network=False,
        )
        log = self._root.with_suffix(".log")
        container = Container("build", spec, "", log)
        try:
            if code := container.wait(1800):
                sys.exit(f"exit code {code}; {log} ends with:\n" + "\n".join(log.read_text().splitlines()[-20:]))
        finally:
            container.close()


def build(base: Path, work: Path, given: dict[str, str], binds: list[Mount]) -> None:
    """Every stage in turn; the last one's root filesystem is `work`/image."""
    stages = read(DOCKERFILE)
    roots: dict[str, Path] = {}
    for number, stage in enumerate(stages):
        root = work / (stage.name or "image") if number < len(stages) - 1 else work / "image"
        print(f"FROM {stage.base} AS {root.name}", flush=True)
        subprocess.run(["cp", "-a", "--", roots.get(stage.base, base), root], check=True)
        roots[stage.name] = root
        Builder(root, roots, given, binds).run(stage)


def _bind(text: str) -> Mount:
    source, _, target = text.partition(":")
    return Mount(Path(source), target, True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    builds = verbs.add_parser("build")
    builds.add_argument("--base", type=Path, required=True)
    builds.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    builds.add_argument("--bind", action="append", default=[], metavar="FOLDER:TARGET", help="a local package index")
    ups = verbs.add_parser("up")
    ups.add_argument("--replicas", type=int, default=2)
    ups.add_argument("--rounds", type=int, default=3, help="exchanges of each peer to wait for")
    ups.add_argument("--init", type=Path, help="an init program such as tini-static, for services with `init: true`")
    for verb in (builds, ups):
        verb.add_argument("--work", type=Path, required=True)
    args = parser.parse_args()
    if args.verb == "build":
        args.work.mkdir(parents=True, exist_ok=True)
        given = dict(it.split("=", 1) for it in args.build_arg)
        build(args.base, args.work, given, [_bind(it) for it in args.bind])
    elif os.environ.get("REHEARSAL_SPACES") is None:
        # Everything below lives in these spaces, and ends with them.
        spaces = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        again = [*spaces, sys.executable, "-m", "docker.rehearse", *sys.argv[1:]]
        sys.exit(subprocess.run(again, env={**os.environ, "REHEARSAL_SPACES": "1"}, check=False).returncode)
    else:
        from docker.rehearsal import rehearse

        rehearse(args.work, args.replicas, args.rounds, args.init)


if __name__ == "__main__":
    main()
