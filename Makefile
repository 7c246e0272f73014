.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
MODELS := rapidocr-onnxruntime==1.4.4

.PHONY: help demo test lint bench clean

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

test: $(STAMP)  ## Install and run the tests
	$(BIN)/python -m pip install --quiet --no-deps $(MODELS) nudenet==3.4.2 ddddocr==1.6.1
	$(BIN)/python -m pytest

lint: $(STAMP)  ## Formatting, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)  ## Compare operators and models with NumPy, PyTorch and onnxruntime, side by side
	$(BIN)/python -m pip install --quiet --no-deps $(MODELS)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python benchmarks/ops.py
	$(BIN)/python benchmarks/models.py

clean:  ## Remove the virtual environment and caches
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
