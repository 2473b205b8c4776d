# `make` lists the targets. Each of `train` and `test` sets everything up on a fresh machine first.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
SKYRL_VENV := .venv-skyrl
RUN := PYTHONPATH=$(CURDIR):$(CURDIR)/launchers/plugin $(VENV)/bin/python
# Linux wheels of torch on PyPI carry CUDA (some 3 GB). For a CPU build:
#   make train PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
PIP_ARGS ?=
ARGS ?=
# With libgomp's default, waiting threads spin and slow down every other process on the machine.
export OMP_WAIT_POLICY ?= passive

.DEFAULT_GOAL := help
.PHONY: help train test test-skyrl lint benchmark clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14
	@echo
	@echo '  make train ARGS="adapter.rank=16 reward=maze_shaped"    passes overrides; ARGS=--help lists them'

train: $(VENV)/train.ready ## Set up, then post-train the tiny Qwen3-VL on mazes (90 s on one core)
	$(RUN) train.py $(ARGS)

test: $(VENV)/test.ready lint test-skyrl ## Set up, then run linter, type checker and all tests
	$(RUN) -m pytest $(ARGS)

test-skyrl: $(SKYRL_VENV)/ready ## Set up Python 3.12 with SkyRL and vLLM, then run the tests that need them (no GPU)
	$(SKYRL_VENV)/bin/python -m pytest -o addopts="--strict-markers -q" tests/skyrl

lint: $(VENV)/test.ready ## Linter, formatter and type checker alone
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright --warnings

benchmark: $(VENV)/train.ready ## Side-by-side figures of this machine
	$(RUN) scripts/benchmark.py $(or $(ARGS),all)

clean: ## Remove the virtual environments
	rm -rf $(VENV) $(SKYRL_VENV)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) -V); try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip

# constraints.txt pins every package of both installs, so that two machines train with the same numbers.
$(VENV)/train.ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e .
	@touch $@

# pyenv's shim of a version that is not selected is found and does not run; uv looks elsewhere, and downloads one if it may.
PYTHON312 ?= $(firstword $(shell python3.12 -c 'import sys; print(sys.executable)' 2>/dev/null) \
  $(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/3.12.*/bin/python) 3.12)
$(SKYRL_VENV)/ready: constraints-skyrl.txt | $(VENV)/test.ready
	$(VENV)/bin/uv venv --quiet --clear --python $(PYTHON312) $(SKYRL_VENV)
	$(VENV)/bin/uv pip install --quiet --no-deps --python $(SKYRL_VENV)/bin/python -r constraints-skyrl.txt
	@touch $@

$(VENV)/test.ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e '.[dev,optuna,data,hyperpod,slurm]'
	@touch $@ $(VENV)/train.ready
