# Every target makes its own environment in .venv first: a bare machine needs Python 3.11 or newer and make.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PEERS := .venv/peers
# Tests write and sync a lot, and kill processes, not machines: in memory, where there is plenty.
SCRATCH := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 {print "TMPDIR=/dev/shm"}')

# uv compiles nothing: without this, every process that a test starts would compile anew whatever it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo picture test quick tools check fix bench crash golden pin clean

help:  ## show this help
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "limpet needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[encryption,mcp,openai,postgres,server]' --group dev
	@touch $(READY)

demo: $(READY)  ## an agent of nine steps is killed at step 6, and another process goes on
	@$(BIN)/limpet demo

picture: $(READY)  ## play the demo, and draw it for the README
	@$(BIN)/python -m limpet.demo.picture docs/demo.svg

test: check tools  ## everything that must hold, in a few minutes
	@$(SCRATCH) $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

quick: check  ## check, unit, laws, behaviour on one store: about two minutes, for the inner loop
	@$(SCRATCH) $(BIN)/python -m pytest tests/unit tests/laws tests/behaviour tests/conformance/test_sqlite.py -n auto --maxprocesses 4 -q

tools:  ## install what tests use and pip cannot: PgBouncer and gcc, where root and apt are there
	@PATH="$$PATH:/usr/sbin"; for each in pgbouncer gcc; do \
		command -v $$each >/dev/null || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || { \
		export RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive; \
		apt-get install -qq -y $$each >/dev/null 2>&1 \
		|| { apt-get update -qq && apt-get install -qq -y $$each; } >/dev/null 2>&1 || true; }; done

check: $(READY)  ## lint, types, import order
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo > .venv/imports.log || { cat .venv/imports.log; exit 1; }

fix: $(READY)  ## mend what the linter can mend, write the generated pages
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format --quiet
	@$(BIN)/python -m tests.docs.reference

$(PEERS)/.ready: $(READY)
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(PEERS)
	@$(BIN)/uv pip install --quiet --python $(PEERS)/bin/python --constraint constraints.txt --group peers
	@touch $@

bench: $(PEERS)/.ready  ## how fast, beside bare loops on the same store, and beside a peer
	@LANGGRAPH_PYTHON=$${LANGGRAPH_PYTHON:-$(PEERS)/bin/python} $(BIN)/python -m bench

crash: $(READY) tools  ## the long proofs: many processes, kills, faults
	@$(SCRATCH) $(BIN)/python -m pytest tests/crash tests/behaviour tests/docs/test_newcomer.py --full -s

golden: $(READY)  ## write the stored formats of this version to tests/golden
	@$(BIN)/python -m tests.golden.make

pin: $(READY)  ## choose the newest versions and write them to constraints.txt
	@$(BIN)/uv pip compile pyproject.toml --quiet --upgrade --all-extras --group dev --group peers --python-version 3.11 \
		--no-annotate --no-header --no-emit-index-url --output-file constraints.txt

clean:  ## remove the environment and caches
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
