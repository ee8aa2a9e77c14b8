# `make quickstart` and `make test` do everything on a fresh machine: Python 3.11, git and make are enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
VENV_NEWEST ?= .venv-newest
VENV_OLDEST ?= .venv-oldest
GPU_PACKAGES ?= .gpu-packages
GPU_WHEELS ?=
RUN_DIR ?= runs/quickstart
SLOW ?= $(sort $(notdir $(patsubst %/,%,$(dir $(wildcard tests/*/__init__.py tests/*/test_*.py)))))
SLOW_MINUTES ?= 240
export OMP_NUM_THREADS ?= 1

.PHONY: help install quickstart test test-newest test-oldest test-slow test-docs pages parity lattice catalogue bench gpu bad-inputs estimate-accuracy mutants soundness runs fuzz models faults soak verify-all lint goldens reference docs clean

help:
	@echo "make quickstart  install, check, train on 4 CPU ranks, resume, show where everything is"
	@echo "make test        lint, types and tests"
	@echo "make test-newest quickstart, parity and tests with the newest releases of all libraries"
	@echo "make test-oldest quickstart, parity and tests with the oldest PyTorch that planc supports"
	@echo "make test-slow   the long suites, folder by folder: hours; SLOW=\"figures estimate\" for some of them"
	@echo "make test-docs   every page of the documentation, with every command on it: about 15 minutes"
	@echo "make pages       the tests of HTML pages, in Chromium"
	@echo "make parity      every launch shape against one process, as a table"
	@echo "make lattice     every mesh of up to 8 ranks, run every way, against one process, as LATTICE.md has it"
	@echo "make catalogue   every known fault, and what catches it, as a table"
	@echo "make bench       measure whole commands, and training beside the same written by hand, as SPEED.md has it"
	@echo "make gpu         everything on CUDA devices, with the PyTorch of this machine, as GPU.md has it"
	@echo "make bad-inputs  every bad plan with planc's answer, how soon, in how much memory"
	@echo "make estimate-accuracy  estimated peaks and speeds against published ones, and peaks against rehearsals"
	@echo "make mutants     judge 1000 mutated plans by checks and by real runs"
	@echo "make soundness   run every edit of right plans that check accepts, and some of the others"
	@echo "make runs        whole runs of plans in which every two features meet, against one process"
	@echo "make fuzz        search for plans that make planc raise, FUZZ_MINUTES=30 long"
	@echo "make models      every architecture of transformers on five meshes against one process, as a table"
	@echo "make faults      kill, starve and damage saves and loads of checkpoints in every way, as a table"
	@echo "make soak        an hour of training that meets 20 random faults, beside an hour without, as SOAK.md has it"
	@echo "make verify-all  planc verify on every plan that ships, as a table"
	@echo "make goldens     regenerate golden files; read the diff before you commit it"
	@echo "make reference   regenerate REFERENCE.md, and the package map in CONTRIBUTING.md"
	@echo "make docs        build the documentation into build/docs; every warning is an error"

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

# These are of deadlines and of memory, which tests beside them would spend: they stay in one line, of one worker:
# a test that ends it fails alone.
ALONE := $(addprefix tests/faults/test_,$(addsuffix .py,behind leaving preemption status)) \
	$(addprefix tests/launch/test_launch_,$(addsuffix .py,lost_ranks meeting))
WITH_TORCH := $(addprefix tests/,checkpoints dist dropout gpu inventory launch pipelining positions rehearsal runtime verify)

test: install lint
	$(BIN)/python -m pytest -n 2 --dist loadfile $(addprefix --ignore=,$(ALONE))
	$(BIN)/python -m pytest -n 1 --dist loadfile $(ALONE)

# The constraints hold the tested set; this finds out what newer releases change before a user does.
test-newest: $(VENV_NEWEST)/.installed
	$(VENV_NEWEST)/bin/python -m pip list --disable-pip-version-check
	$(MAKE) quickstart parity VENV=$(VENV_NEWEST) VENV_NEWEST=none RUN_DIR=runs/newest
	$(VENV_NEWEST)/bin/python -m pytest -n 2 --dist loadfile $(addprefix --ignore=,$(ALONE))
	$(VENV_NEWEST)/bin/python -m pytest -n 1 --dist loadfile $(ALONE)

$(VENV_NEWEST)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV_NEWEST)
	$(VENV_NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check \
		--upgrade --upgrade-strategy eager -e '.[test]'
	touch $@

# The floor of PyTorch is what passes here: everything else is the tested set.
test-oldest: $(VENV_OLDEST)/.installed
	$(MAKE) quickstart parity VENV=$(VENV_OLDEST) VENV_NEWEST=none RUN_DIR=runs/oldest
	$(VENV_OLDEST)/bin/python -m pytest -n 2 --dist loadfile $(WITH_TORCH)

$(VENV_OLDEST)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV_OLDEST)
	grep -v '^torch==' constraints.txt > $(VENV_OLDEST)/constraints.txt
	$(VENV_OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check \
		-c $(VENV_OLDEST)/constraints.txt -e '.[test]' \
		"$$(sed -n 's/.*"torch>=\(.*\)",/torch==\1.*/p' pyproject.toml)"
	touch $@

# A folder that fails, or that runs out of its time, keeps no other from its turn; one without slow tests exits with 5.
test-slow: install
	@for folder in $(SLOW); do \
		echo "tests/$$folder"; \
		timeout $(SLOW_MINUTES)m $(BIN)/python -m pytest -m slow -rf tests/$$folder; \
		case $$? in 0|5) ;; 124) failed="$$failed $$folder (out of time)" ;; *) failed="$$failed $$folder" ;; esac; \
	done; \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

test-docs: install
	$(BIN)/python -m pytest -m "slow or not slow" -n 2 --dist loadfile tests/docs

pages: install
	@command -v chromium > /dev/null || echo "no Chromium here: tests that need it are skipped"
	$(BIN)/python -m pytest -rs tests/report

parity: install
	$(BIN)/python tests/parity/run.py

lattice: install
	$(BIN)/python tests/lattice/run.py

catalogue: install
	$(BIN)/python -m tests.catalogue.table

# What misses its goal must not keep the rest from being measured; the page says what did.
bench: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m tests.bench.startup
	$(BIN)/python -m tests.bench.rehearsal
	-$(BIN)/python -m tests.bench.throughput
	-$(BIN)/python -m tests.bench.footprint
	-$(BIN)/python -m tests.bench.overhead
	-$(BIN)/python -m tests.bench.syncs
	-$(BIN)/python -m tests.bench.start
	-$(BIN)/python -m tests.bench.loading
	-$(BIN)/python -m tests.bench.data
	-$(BIN)/python -m tests.data.speed --keep
	-$(BIN)/python -m tests.bench.saving
	$(BIN)/python -m tests.bench.page

# Where there is no CUDA device this is one line, before anything is installed.
gpu:
	@$(PYTHON) -m tests.gpu.probe $(GPU_ARGS)
	@$(MAKE) --no-print-directory $(GPU_PACKAGES)/.installed
	PYTHONPATH="$(CURDIR)/$(GPU_PACKAGES)" $(PYTHON) -m tests.gpu.run $(GPU_ARGS)

# The machine's own PyTorch stays: nothing is installed that another package asks for. A folder of wheels needs no
# network, and leaves out what the machine has.
$(GPU_PACKAGES)/.installed: constraints.txt tests/gpu/requirements.txt
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(GPU_PACKAGES) \
		$(if $(GPU_WHEELS),--no-index $(GPU_WHEELS)/*.whl,-c constraints.txt -r tests/gpu/requirements.txt)
	touch $@

estimate-accuracy: install
	$(BIN)/python -m tests.estimate.published
	$(BIN)/python -m tests.estimate.published_pipelines
	$(BIN)/python -m tests.estimate.published_speed
	$(BIN)/python -m tests.estimate.against_rehearsal

mutants: install
	$(BIN)/python -m tests.mutants.run --limit $${MUTANTS:-1000}

bad-inputs: install
	$(BIN)/python -m tests.robustness.table

soundness: install
	$(BIN)/python -m tests.soundness.run
	$(BIN)/python -m tests.soundness.rules_fuzz --seed $${SEED:-0}

runs: install
	$(BIN)/python -m tests.runs.checked --seed $${SEED:-0}
	$(BIN)/python -m tests.runs --seed $${SEED:-0}

fuzz: install
	$(BIN)/python -m tests.robustness.fuzz

models: install
	$(BIN)/python -m tests.models.run
	$(BIN)/python -m tests.models.tasks masked_lm
	$(BIN)/python -m tests.models.tasks sequence_classification
	$(BIN)/python -m tests.models.tasks token_classification

faults: install
	$(BIN)/python -m tests.faults.run

soak: install
	$(BIN)/python -m tests.soak.soak --minutes $${MINUTES:-60} --faults $${FAULTS:-20} --seed $${SEED:-1}

verify-all: install
	$(BIN)/python -m tests.verify.every_plan

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

goldens: install
	$(BIN)/python -m pytest --update-goldens tests/ui tests/graph tests/diff tests/show tests/fmt \
		tests/review tests/report tests/lsp/test_lsp_session.py tests/highlight tests/cli tests/docs \
		tests/estimate/test_estimate_plans.py tests/plan/test_plan_canonical.py

reference: install
	$(BIN)/python -m planc.cli.manual > REFERENCE.md
	$(BIN)/python -m tests.architecture.map --contributing

# Nothing is fetched: internal links are checked, others are not.
docs: install
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs

clean:
	rm -rf $(VENV) $(VENV_NEWEST) $(VENV_OLDEST) $(GPU_PACKAGES) runs build dist
