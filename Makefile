# make help lists the targets. PYTHON=/path/to/python3.12 chooses the interpreter of .venv; ARGS="…" goes to pytest.

PY := .venv/bin/python
SUITE := $(PY) -m pytest -p tests.plugins.lanes -n 3
NOTHING := { status=$$?; [ $$status != 5 ] || echo "no test was collected, so nothing was tested" >&2; exit $$status; }
# Kept wherever this runs: without it thousands of processes of the suite would compile all modules anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help man setup demo test test-rest test-both test-whole docs lint fmt generate typecheck bench bench-harness bench-peers chaos chaos-short citus failover hosts fuzz model simulation simulation-test mutants test-systemd lock audit sbom dist clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv with pulse and the development tools (once; again when pyproject.toml changes)
	@.ci/venv

demo: setup ## set up, then watch a worker being killed in mid-job and its job recovered
	@.venv/bin/pulse demo

test: setup ## set up, then run what finds most faults in five minutes (ARGS="-k claim -x -n 0")
	@$(SUITE) -m "not rest" $(ARGS) || $(NOTHING)

test-rest: setup ## the rest of the suite: what takes longer, the oldest PostgreSQL, whole systems in every fault
	@$(SUITE) -m rest $(ARGS) || $(NOTHING)

test-both: setup ## the two in one run, as .ci/run has them: what waits runs beside what computes
	@$(SUITE) $(ARGS) || $(NOTHING)

test-systemd: setup ## the units in deploy/ under a real systemd, in a container (root, package systemd-container)
	@$(PY) -m pytest -m systemd tests/systemd $(ARGS)

docs: setup ## build the documentation into build/site; a warning or a dead link fails
	@rm -rf build/site
	@$(PY) -m sphinx -q -a -W --keep-going -j auto -b html -d build/site.cache docs build/site $(ARGS)
	@$(PY) docs/docsite/verify.py build/site && echo "docs: build/site/index.html"

test-whole: setup ## both, with all that is left out for want of time: every combination on every PostgreSQL, more seeds
	@PULSE_TEST_WHOLE=1 $(SUITE) $(ARGS)

lint: setup ## ruff, import-linter, our own rules, mypy and pyright, and whether what is generated is up to date
	@.ci/lint

fmt: setup ## format the code and repair what ruff can repair by itself
	@$(PY) -m ruff check --fix-only --quiet .
	@$(PY) -m ruff format .

generate: setup ## write pulse/client/client.py anew, the blocking client, from the async one
	@$(PY) -m tools.generate_client

typecheck: setup ## mypy and pyright alone
	@.ci/lint mypy pyright

man: setup ## write docs/man/pulse.1 anew, from the commands
	@$(PY) -m pulse.cli.admin.manpage > docs/man/pulse.1

bench: setup ## measure this machine in five minutes (ARGS="steady --rounds 5 --json FILE"; see docs/performance.md)
	@$(PY) -m bench $(ARGS)

bench-harness: setup ## run the public harness without docker (HARNESS=DIR of its clone; ARGS="--systems pulse --scenario sustained_high_load"; bench/adapter/README.md)
	@$(PY) -m bench.harness $(HARNESS) $(ARGS)

bench-peers: setup ## measure other job queues side by side with pulse (ARGS="--rounds 1 --peers pulse,pgqueuer"; docs/performance-peers.md)
	@$(PY) -m bench.peers $(ARGS)

chaos: setup ## break a system at random for half an hour (ARGS="--seed N --duration 10m --faults 1,6"; see docs/chaos.md)
	@$(PY) -m tests.chaos $(ARGS)

failover: setup ## a PostgreSQL cluster under Patroni fails over below a system at work (root; ARGS="kill-node"; docs/high-availability.md)
	@$(PY) -m tests.failover $(ARGS)

citus: setup ## queues on Citus are moved and lose nodes while jobs run (root; PULSE_CITUS as deploy/citus/build prints it; docs/citus.md)
	@$(PY) -m pytest tests/citus $(ARGS)

chaos-short: setup ## one fault after the other, each with its bar (4 minutes)
	@PULSE_TEST_WHOLE=1 $(PY) -m pytest -m chaos tests/chaos $(ARGS)

hosts: setup ## five hosts as network namespaces, of which one after the other dies or is cut off (as root, 6 minutes; ARGS="--seed N --faults cut-off,twin"; docs/chaos.md)
	@$(PY) -m tests.chaos.hosts $(ARGS)

fuzz: setup ## a million frames, right and wrong, against a system at work (ARGS="--frames N --seed N --json FILE"; docs/fuzzing.md)
	@$(PY) -m tests.fuzz $(ARGS)

model: setup ## search the formal model for violations, with and without each guard (docs/model.md; ARGS="ladder NEVER_KILLS")
	@$(PY) -m tests.model $(ARGS)

simulation-test: setup ## what the simulation finds, and that it finds what was broken on purpose
	@$(PY) -m pytest -m simulation tests/simulation $(ARGS)

simulation: setup ## run a thousand simulated worlds, or more (SEEDS=100000, SEEDS=5000-6000; docs/simulation.md)
	@$(PY) -m tests.simulation --seeds $(or $(SEEDS),1-1000) $(ARGS)

mutants: setup ## take the guards of code and SQL away, one after the other, and see a test fail for each (ARGS="pulse.ui --fine --seconds 600")
	@$(PY) -m tests.mutants $(ARGS)

lock: ## pin all dependencies in locks/ with their hashes (ARGS=--upgrade: the newest; needs the network)
	@.ci/lock $(ARGS)

audit: ## hold what locks/ pins against the public lists of known vulnerabilities (needs the network)
	@.ci/audit $(ARGS)

sbom: setup ## write what an installation consists of to build/sbom.json (CycloneDX)
	@mkdir -p build && .venv/bin/cyclonedx-py requirements locks/all.lock --pyproject pyproject.toml --mc-type library \
	    --output-reproducible --output-format JSON --output-file build/sbom.json && echo "sbom: build/sbom.json"

dist: setup ## build wheel and sdist into dist/; the same commit gives the same bytes, whenever and wherever
	@rm -rf dist && umask 022 && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(PY) -m build --no-isolation >/dev/null \
	    && sha256sum dist/*

clean: ## remove .venv, caches and build products
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
