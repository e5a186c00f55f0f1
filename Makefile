# `make demo` and `make test` set up all they need: python3, make, git and a package index suffice.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test test-all check fmt bench-engine clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(READY) ## make .venv with everything that development needs

$(READY): pyproject.toml constraints.txt
	@echo "setting up .venv (once; a few minutes, about 1.5 GB)"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY) ## start a server and have it draw a dozen pictures into out/demo
	$(BIN)/diffuserve demo

serve: $(READY) ## serve the bundled model on this machine
	$(BIN)/diffuserve serve

test: $(READY) ## run the tests, but the slow ones
	$(BIN)/pytest -m "not slow"

test-all: $(READY) ## run all tests
	$(BIN)/pytest

check: $(READY) ## style, types and layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(READY) ## format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench-engine: $(READY) ## the engine beside stock diffusers; leave the machine alone meanwhile
	$(BIN)/python benchmarks/bench_engine.py

clean: ## remove everything that was made
	rm -rf .venv out dist build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
