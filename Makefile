# `make quickstart` and `make test` do everything on a fresh machine: Python 3.11, git and make are enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN_DIR ?= runs/quickstart
export OMP_NUM_THREADS ?= 1

.PHONY: help install quickstart test test-slow parity bench fuzz lint goldens clean

help:
	@echo "make quickstart  install, check, train on 4 CPU ranks, resume, show where everything is"
	@echo "make test        lint, types and tests"
	@echo "make test-slow   the long suites"
	@echo "make parity      every launch shape against one process, as a table"
	@echo "make bench       measure start-up times, as ratios"
	@echo "make fuzz        search for plans that make planc raise, FUZZ_MINUTES=30 long"
	@echo "make goldens     regenerate golden files; read the diff before you commit it"

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# Stops half-way and starts again, so that the second run shows a resume.
quickstart: install
	rm -rf $(RUN_DIR)
	$(BIN)/planc check plans/quickstart.plan --world-size 4
	$(BIN)/torchrun --standalone --nproc-per-node 4 \
		-m planc.run plans/quickstart.plan --run-dir $(RUN_DIR) --stop-after 60
	$(BIN)/torchrun --standalone --nproc-per-node 4 \
		-m planc.run plans/quickstart.plan --run-dir $(RUN_DIR)
	$(BIN)/python examples/loss_curve.py $(RUN_DIR)

test: install lint
	$(BIN)/python -m pytest

test-slow: install
	$(BIN)/python -m pytest -m slow

parity: install
	$(BIN)/python tests/parity/run.py

bench: install
	$(BIN)/python tests/bench/startup.py

fuzz: install
	$(BIN)/python -m tests.robustness.fuzz

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

goldens: install
	$(BIN)/python -m pytest --update-goldens tests/ui tests/graph tests/diff tests/show tests/fmt \
		tests/review tests/highlight tests/cli

clean:
	rm -rf $(VENV) runs build dist
