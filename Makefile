# Two commands: `make run` and `make test`. Each sets everything up in .venv first.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Tests that need no GPU, data or browser; one process per core, up to four.
ANYWHERE := not cuda and not data and not browser and not full
PYTEST := python -m pytest -n auto --maxprocesses 4 --dist worksteal

.PHONY: run test fuzz bench check lowest docs clean

run: $(READY)
	$(BIN)/normalign reproduce --out out/paper

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/$(PYTEST) -m "$(ANYWHERE)" --cov --cov-report=term
	cd reproduction && OMP_NUM_THREADS=1 ../$(BIN)/$(PYTEST) -m "$(ANYWHERE)"

# Random cases against independent implementations, for at most ten minutes. New cases in each
# run unless FUZZ_SEED is set: FUZZ_SECONDS=600 FUZZ_SEED=7 make fuzz
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz

# Times relative to other implementations, compared with stored ratios; needs two idle cores.
# To accept a deliberate change: make bench BASELINE=reset, in a commit of its own.
bench: $(READY)
	@$(BIN)/python -c 'import xrfm' 2>/dev/null || $(BIN)/python -m pip install --quiet \
		--disable-pip-version-check --constraint constraints.txt xrfm
	$(BIN)/python benchmarks/bench.py $(if $(filter reset,$(BASELINE)),--reset)

# Static checks.
check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# The tests with the oldest supported versions, in an environment of their own. Those versions
# have wheels for Python 3.11 and 3.12.
lowest:
	test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints-lowest.txt --editable ".[dev]" --editable reproduction
	OMP_NUM_THREADS=1 .venv-lowest/bin/$(PYTEST) tests -m "$(ANYWHERE) $(LEAVE)"
	cd reproduction && OMP_NUM_THREADS=1 ../.venv-lowest/bin/$(PYTEST) tests -m "$(ANYWHERE) $(LEAVE)"

docs: $(READY)
	$(BIN)/python docs/figures.py
	$(BIN)/python docs/tables.py
	$(BIN)/python docs/paper_figures.py
	$(BIN)/python docs/profile_figure.py

clean:
	rm -rf .venv .venv-lowest out

$(READY): pyproject.toml reproduction/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "normalign needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable ".[dev]" --editable reproduction
	touch $(READY)
