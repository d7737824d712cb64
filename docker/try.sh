#!/usr/bin/env bash
# Builds the image and runs the compose swarm on a container engine of its own: make docker-try. Needs root, and Debian's
# docker.io, docker-compose and debootstrap. About a quarter of an hour and 8 GB in WORK (default /var/tmp/peer-docker-try).
#
# The engine has its own folders and socket, so it meets no other one. The base image is debootstrap's, and the wheels are
# fetched by this machine's pip: nothing is pulled from a registry of images.
set -euo pipefail
cd "$(dirname "$0")/.."
work=${WORK:-/var/tmp/peer-docker-try}
python=$PWD/.venv/bin/python

[ "$(id -u)" = 0 ] || { echo "docker/try.sh: needs root, for the engine and debootstrap" >&2; exit 1; }
for tool in dockerd docker docker-compose debootstrap; do
    command -v "$tool" >/dev/null || {
        echo "docker/try.sh: $tool is missing: apt-get install docker.io docker-compose debootstrap" >&2
        exit 1
    }
done
mkdir -p "$work"

echo "== engine"
export DOCKER_HOST=unix://$work/docker.sock DOCKER_BUILDKIT=0 COMPOSE_DOCKER_CLI_BUILD=0
dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/dockerd.pid" -H "$DOCKER_HOST" \
    >"$work/dockerd.log" 2>&1 &
engine=$!
trap 'kill "$engine" 2>/dev/null; wait "$engine" || true' EXIT
for _ in $(seq 60); do
    docker info >/dev/null 2>&1 && break
    kill -0 "$engine" 2>/dev/null || { tail -20 "$work/dockerd.log" >&2; exit 1; }
    sleep 1
done
docker info --format 'docker {{.ServerVersion}}, {{.Driver}}, {{.NCPU}} processors'
docker-compose --version

echo "== base image"
if ! docker image inspect peer-base:bookworm >/dev/null 2>&1; then
    rm -rf --one-file-system "$work/base"
    debootstrap --variant=minbase --include=python3,python3-venv,python3-dev,gcc,libc6-dev,ca-certificates \
        bookworm "$work/base" >"$work/debootstrap.log"
    tar -C "$work/base" -c . | docker import - peer-base:bookworm
fi

echo "== wheels"
"$python" -m pip wheel --quiet --disable-pip-version-check -w docker/wheels -c constraints.txt . "setuptools>=77" wheel
rm -f docker/wheels/peer_swarm-* # the image builds that one itself

echo "== image"
export BASE=peer-base:bookworm BUILD_BASE=peer-base:bookworm PIP_NO_INDEX=1
docker-compose -p peer-try -f docker/compose.yml --profile swarm build --quiet bootstrap
docker image inspect peer-swarm:cpu --format '{{.Size}} bytes'

echo "== swarm"
"$python" docker/try_swarm.py
