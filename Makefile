# `make demo` and `make test` need Python 3.11+ with pip, and make; nothing else.
# They use the active environment, or .venv, which they create if there is none.

VENV := $(or $(VIRTUAL_ENV),$(CONDA_PREFIX),.venv)
PYTHON := $(VENV)/bin/python
PYTHON3 ?= python3
PRODUCT := $(VENV)/.specfleet-installed
TOOLS := $(VENV)/.specfleet-dev-installed

.PHONY: demo test lint bench fuzz mutants clean

demo: $(PRODUCT)
	$(VENV)/bin/specfleet run experiments/presets/demo.yaml

WORLDS ?= 0.2
test: $(TOOLS)
	@echo 'about twelve minutes on two idle cores with half of the random worlds that tests name; now with $(WORLDS) of them (WORLDS=1: all)'
	PYTHONDONTWRITEBYTECODE= $(PYTHON) -m pytest -n auto --dist worksteal -rs --worlds $(WORLDS)

lint: $(TOOLS)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

bench: $(TOOLS)
	$(PYTHON) tests/perf/bench.py
	$(PYTHON) -m pytest tests/perf -m perf --benchmark-columns=min,median,rounds

MINUTES ?= 5
fuzz: $(TOOLS)
	$(PYTHON) tests/fuzz/fuzz.py --minutes $(MINUTES) --seed $$(date +%s) --keep .fuzz

N ?= 100
SEED ?= 0
mutants: $(TOOLS)
	$(PYTHON) tests/mutation/mutate.py --record $(MINUTES) --mutants $(N) --seed $(SEED)

$(PYTHON):
	$(PYTHON3) -c 'import sys; sys.exit("Specfleet needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON3) -m venv $(VENV) || { rm -rf $(VENV) && $(PYTHON3) -m venv --without-pip $(VENV) \
		&& $(PYTHON3) -m pip --python $(PYTHON) install --quiet pip; }

$(PRODUCT): pyproject.toml | $(PYTHON)
	$(PYTHON) -m pip install --quiet --editable .
	touch $@

$(TOOLS): pyproject.toml | $(PYTHON)
	$(PYTHON) -m pip install --quiet --editable '.[dev]'
	touch $(PRODUCT) $@

clean:
	rm -rf .mutants build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
