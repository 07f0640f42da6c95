# `make up` and `make test` are all the set-up there is: each creates the environment from requirements.lock first.

PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3,$(shell $(p) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && echo $(p))))
VENV   := .venv
BIN    := $(VENV)/bin
ENV    := $(VENV)/.synced
DSV41  := $(BIN)/dsv41 --profile embedded

.PHONY: help env up down status test test-stack test-machines test-unit test-kernels test-engine test-monitoring test-node test-qemu pictures test-gpu lint format lock measure clean

help:
	@echo "make up      start the embedded stack and return when its gate has passed"
	@echo "make down    stop it          make status  what runs"
	@echo "make test    lint, unit tests, kernels in the interpreter, the real engine on this machine"
	@echo "make lint    ruff, mypy, ansible-lint    make measure write the figures of the embedded stack to deploy/results/"
	@echo "make lock    resolve requirements.lock again from pyproject.toml"

env: $(ENV)

# The installer itself comes from the lock, by hash; compiling the modules now saves every process that starts later from doing it.
$(ENV): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "dsv41: no Python 3.11 or 3.12 found; install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)
	@awk '/^[a-zA-Z0-9]/ { keep = /^uv==/ } keep' requirements.lock > $(VENV)/uv.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $(VENV)/uv.lock
	@echo "installing the environment from requirements.lock"
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes --compile-bytecode requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

up: $(ENV)
	@$(DSV41) up --detach

down: $(ENV)
	@$(DSV41) down

status: $(ENV)
	@$(DSV41) status

lint: $(ENV)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@cd ansible && PATH="$(CURDIR)/$(BIN):$$PATH" ansible-lint -q

format: $(ENV)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Two lanes side by side, about as long: both wait more than they compute, and the machines of test-node have a network of their own.
test: lint
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=line test-stack test-machines

test-stack: $(ENV)
	@$(MAKE) --no-print-directory --jobs=1 test-unit test-engine test-monitoring

test-machines: $(ENV)
	@$(MAKE) --no-print-directory --jobs=1 test-kernels test-node

test-unit: $(ENV)
	$(BIN)/pytest tests/unit

test-kernels: $(ENV)
	$(BIN)/pytest tests/kernels

test-engine: $(ENV)
	$(BIN)/pytest tests/engine

# Board pictures need npm and Chromium; without them, or without a Prometheus, those tests skip with the command that helps.
test-monitoring: $(ENV)
	$(BIN)/pytest tests/monitoring

pictures: $(ENV)
	BOARD_PICTURES=monitoring/screenshots $(BIN)/pytest tests/monitoring/test_pictures.py

# Boots machines in containers; skips, and says why, where it may not. NODE_BASE chooses the distribution.
test-node: $(ENV)
	$(BIN)/pytest tests/node

# Boots a machine with two NUMA nodes and a kernel of its own, for what a container cannot show. Emulated, minutes:
# not part of `test`.
test-qemu: $(ENV)
	$(BIN)/pytest tests/qemu

test-gpu: $(ENV)
	$(BIN)/pytest tests/gpu

measure: $(ENV)
	@$(BIN)/python -m dsv41_serving.bench.embedded deploy/results/embedded.json --readme README.md

lock:
	@$(BIN)/uv pip compile pyproject.toml --all-extras --python-version 3.11 --universal --generate-hashes --no-header --no-annotate --quiet --output-file requirements.lock

clean: down
	rm -rf $(VENV)
