.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
MODELS := rapidocr-onnxruntime==1.4.4
MORE_MODELS := nudenet==3.4.2 ddddocr==1.6.1

HOST ?=
AS := $(if $(HOST),--host-target $(HOST))
SIDE_BY_SIDE := -n auto --dist worksteal

.PHONY: help demo check test lint bench clean

help:  ## List the commands
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/'

$(STAMP): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: $(STAMP)  ## Install, tune two real models, compile them from the records, show the speed-up (under 10 minutes)
	$(BIN)/python -m pip install --quiet --no-deps $(MODELS)
	$(BIN)/python examples/ocr_demo.py

check: $(STAMP)  ## The tests that start no processes, time nothing, load no models and are quick (under 2 minutes)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m 'not (workers or timing or models or slow)' $(AS)

test: $(STAMP)  ## Install and run the tests, those that time something by themselves; HOST=zen3: as on that processor
	$(BIN)/python -m pip install --quiet --no-deps $(MODELS) $(MORE_MODELS)
	$(BIN)/python -m pytest -m timing $(AS); alone=$$?; \
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m 'not timing' $(AS) && exit $$alone

lint: $(STAMP)  ## Formatting, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)  ## Compare operators and models with NumPy, PyTorch and onnxruntime, side by side; figures go to build/*.json
	$(BIN)/python -m pip install --quiet --no-deps $(MODELS) $(MORE_MODELS)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	@mkdir -p build
	$(BIN)/python benchmarks/ops.py --json build/ops.json
	$(BIN)/python benchmarks/models.py --time 60 --json build/models.json
	@echo 'Into the documents: $(BIN)/python benchmarks/report.py --ops build/ops.json --models build/models.json --docs docs/performance.md --readme README.md'

clean:  ## Remove the virtual environment and caches
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
