# The few commands of the house. Each makes what it needs; there is no other set-up step.
PYTHON ?= python3.11
BIN := .venv/bin
TORCH := $(shell grep -o 'torch==[0-9.]*' pyproject.toml)

.PHONY: sweep test slow check bench train install

sweep: install  ## one whole sweep over the embedded pack, into ./store
	$(BIN)/python -m jobs.sweep sweep=shapes $(ARGS)

test: check  ## static checks, then every test
	$(BIN)/python -m pytest $(ARGS)

slow: install  ## the fault tests with more seeds
	$(BIN)/python -m pytest -m slow $(ARGS)

check: install  ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: install  ## speed as ratios within one run
	$(BIN)/python -m pytest -s tests/benchmarks --override-ini addopts=--import-mode=importlib $(ARGS)

train: install  ## remakes the embedded pack, with fixed seeds
	$(BIN)/python -m jobs.train $(ARGS)

install: .venv/.installed

# torch by pip first: it honours a configured local build, which uv does not
.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(TORCH) uv
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet -e '.[test]'
	touch $@
