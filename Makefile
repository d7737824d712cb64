# Every target makes and reuses .venv by itself.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready

# Empty: Python keeps what it compiled. The tests start hundreds of processes, and each would compile the libraries anew.
export PYTHONDONTWRITEBYTECODE :=
# The tests outnumber the cores. Of two threads of torch one waits until the other has a core too, or spins for it.
test quick seeds attack nightly-tests: export OMP_NUM_THREADS := 1
test quick seeds attack nightly-tests: export OMP_WAIT_POLICY := PASSIVE

.PHONY: swarm test quick seeds attack nightly nightly-tests stress lint fuzz sanitize bench bench-smallest docker-try protos wheel clean

# The main job: a bootstrap node and four peers train together on real text.
swarm: $(STAMP)
	$(BIN)/peer swarm --peers 4

# One more than there are cores, as some of them wait for real processes. Without what is played each night.
test: $(STAMP)
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not nightly"

# The core, codecs, rules, rounds, membership and manifests: what fails first after most changes. No process, under a minute.
quick: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not nightly and not processes" \
		tests/protocol tests/codec tests/outer tests/methods tests/rounds tests/membership tests/run

# The simulations with all of their seeds, of which `make test` plays a few.
seeds: $(STAMP)
	$(BIN)/python -m pytest -n 2 tests/simulation tests/lab/attack/test_breakdown.py

# What strangers may try: records, donors, sockets and words of keys that cost nothing. Minutes.
attack: $(STAMP)
	$(BIN)/python -m pytest -n 2 tests/security/strangers tests/rounds/test_jump.py tests/transport/test_leaf_certificates.py

# What `make test` leaves out, one after the other: two hours.
nightly: nightly-tests fuzz stress

# Swarms of real processes, all seeds of the simulations, all variants of an attack.
nightly-tests: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m nightly

# The tests beside two busy loops: none may fail because its machine is slow.
stress: $(STAMP)
	trap 'kill $$one $$two' EXIT; \
	$(BIN)/python -c 'while True: pass' & one=$$!; \
	$(BIN)/python -c 'while True: pass' & two=$$!; \
	$(MAKE) test

# NO_MKDOCS_2_WARNING: the theme announces its successor at every build.
lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.generated
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --site-dir build/site

# Every decoder of bytes from outside against a million damaged inputs each, about twenty minutes. Less: INPUTS=20000.
INPUTS ?= 1000000
fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz --inputs $(INPUTS) --jobs 2

# The codecs in C under the address and undefined-behaviour sanitizers, a minute.
sanitize: $(STAMP)
	$(BIN)/python -m tests.sanitized

# The benchmarks that need a quiet machine, half an hour: results/*.json, and docs/reference/performance.md of them.
BENCHMARKS := codecs exchange loop_stalls swap_memory group_memory interference growth
bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench]'
	set -e; for one in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$one --results; done
	$(BIN)/python -m benchmarks.exchange --link home --results
	$(BIN)/python -m tests.generated --write

# Every benchmark at its smallest size, to find out whether it still works. Swarms of real processes: an hour.
bench-smallest: $(STAMP)
	BENCH_SMALLEST=all $(BIN)/python -m pytest tests/lab/bench/test_smallest_plays.py -rs

# The image and the compose swarm on a real engine, as root, about a quarter of an hour. Needs docker.io, docker-compose
# and debootstrap of Debian.
docker-try: $(STAMP)
	docker/try.sh

protos: $(STAMP)
	$(BIN)/python -m tests.generated --write

# What an index is given: a wheel and a source distribution in dist/, built and checked. An index takes no wheel that
# says only "linux": auditwheel finds out the oldest C library that it runs with, and names that.
wheel: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,release]'
	rm -rf dist
	$(BIN)/python -m build
	if test "$$(uname)" = Linux; then PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair -w dist dist/*-linux_*.whl && rm dist/*-linux_*.whl; fi
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m abi3audit --strict dist/*.whl

# pip would compile every file of the libraries. The import compiles those that every daemon loads.
$(STAMP): pyproject.toml constraints.txt $(wildcard peer/codec/native/*)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	$(BIN)/python -c "import peer.node.peer, peer.trainer.worker"
	touch $(STAMP)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
