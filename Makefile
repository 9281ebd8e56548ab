# install, check, test, clients457, cover, bench; and demo. Each sets up what it needs in $(VENV).
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

# Trainer of transformers 4.57, in two minutes: its few packages stand before those of $(VENV), which lends the rest.
VENV457 ?= $(VENV)-457
ARGS457 ?= tests/clients --ignore tests/clients/test_trl.py --ignore tests/clients/test_trainer_evaluation.py \
	-k "not peft and not compiles and not (checkpoints and resumes_inside and not accumulated and not fp16)"

.PHONY: help install check test clients457 cover bench demo clean

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

$(VENV457)/.clients: .ci/constraints-457.txt $(VENV)/.dev
	$(BIN)/python -m venv --clear $(VENV457)
	$(BIN)/python -c "import site; print(f'import site; site.addsitedir({site.getsitepackages()[0]!r})')" \
		> "$$($(VENV457)/bin/python -c 'import site; print(site.getsitepackages()[0])')/lent.pth"
	$(VENV457)/bin/python -m pip install --quiet --disable-pip-version-check --requirement .ci/constraints-457.txt
	@touch $@

clients457: $(VENV457)/.clients
	$(VENV457)/bin/python -m pytest $(ARGS457)

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
	rm -rf $(VENV) $(VENV457) build dist htmlcov .coverage* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
