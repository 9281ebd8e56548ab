# install, check, test, cover, bench; and demo. Each sets up what it needs in $(VENV).
#
#   make test ARGS="tests/unit -k launch"     arguments for pytest
#   make bench ARGS="loader --repeats 5"      arguments for the benchmarks
#   make test VENV=/path/to/env               another environment
#   make demo PYTHON=python3.12               another interpreter for a new environment

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
PIP := DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt
# One thread a process: several processes share the machine.
export OMP_NUM_THREADS ?= 1

.PHONY: help install check test cover bench demo clean

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml .ci/constraints.txt | $(BIN)/python
	$(PIP) --editable . scikit-learn
	@touch $@

$(VENV)/.dev: pyproject.toml .ci/constraints.txt | $(BIN)/python
	$(PIP) --editable ".[test,clients,lint]"
	@touch $@ $(VENV)/.run

install: $(VENV)/.dev

demo: $(VENV)/.run
	$(BIN)/python examples/digits.py
	$(BIN)/accelerate launch --cpu --num_processes 2 examples/digits.py

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

cover: $(VENV)/.dev
	COVERAGE_FILE=$(CURDIR)/.coverage $(BIN)/python -m pytest --cov --cov-report=term --cov-report=html $(ARGS)

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) build dist htmlcov .coverage* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
