# Every target but `gpu` makes its own environment first, and again when its inputs change.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.done

.DEFAULT_GOAL := help
.PHONY: help setup demo test check check-slow bench gpu clean

help:
	@echo "make setup       the development environment, in .venv"
	@echo "make demo        train a GraphSAGE in a quarter of its features' memory"
	@echo "make test        the tests, without the slow ones"
	@echo "make check       format, lint, types, imports, docstrings, kernels where nvcc is at hand"
	@echo "make check-slow  the slow tests"
	@echo "make bench       the numbers in the README"
	@echo "make gpu         the checks that need a CUDA device, in the Python at hand"
	@echo "make clean       remove what the others made"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/python examples/demo.py

test: $(STAMP)
	@$(BIN)/python -m pytest -n 2 --dist loadfile

check: $(STAMP)
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/pydoclint --config=pyproject.toml --quiet gnnx
	@$(BIN)/python tests/nvcc.py

# A slow test may take longer than the time limit of the others.
check-slow: $(STAMP)
	@$(BIN)/python -m pytest -m slow --timeout 1800

bench: $(STAMP)
	@test -f benchmarks/run.py || { echo "benchmarks/run.py is missing: nothing to run" >&2; exit 1; }
	@$(BIN)/python benchmarks/run.py

# No set-up and no network: the machine with the device brings its own Python and torch.
gpu:
	@python3 benchmarks/gpu.py

clean:
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist demo-data
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
