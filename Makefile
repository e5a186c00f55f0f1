# `make demo` and `make test` set up all they need: python3, make, git and a package index suffice.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Without their bytecode, every process of a test run compiles all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test test-fast test-old-cpu test-all check docs reference chart typescript dashboards wheel fmt chaos chaos-long emoji-packages bench gpu-kit clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(READY) ## make .venv with everything that development needs

$(READY): pyproject.toml constraints.txt
	@echo "setting up .venv (once; a few minutes, about 3 GB)"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m compileall -q src
	@# Packages may hold files for other versions of Python, which do not compile.
	$(BIN)/python -m compileall -qq -j 0 "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || true
	@$(BIN)/python scripts/install_helm.py || echo "helm could not be installed: tests that need it will skip" >&2
	@touch $@

demo: $(READY) ## start a server and have it draw seventeen images and two clips into out/demo
	$(BIN)/diffuserve demo

serve: $(READY) ## serve the bundled model on this machine
	$(BIN)/diffuserve serve

test: $(READY) ## run the tests, but the slow ones
	@# More processes than cores: many tests wait for servers and browsers that they started.
	$(BIN)/pytest -m "not slow and not alone" --numprocesses 3 --dist worksteal
	$(BIN)/pytest -m "alone and not slow" $$(grep -rl --include='test_*.py' mark.alone tests)

# Unit tests that import no torch, and start no database and no browser.
NOT_FAST := torch|diffuserve\.(engine|models|samplers|testing)|postgres|job_store|database_url|support\.browser

test-fast: $(READY) ## run the unit tests that need neither torch nor a server, in about a minute
	$(BIN)/pytest -m "not slow and not alone" --numprocesses 2 --dist worksteal \
	  $$(grep -rLE --include='test_*.py' '$(NOT_FAST)' tests/unit)

# What an older CPU multiplies otherwise: bf16 without instructions, and no products of bytes.
OLD_CPU := ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2

test-old-cpu: $(READY) ## run the tests of numbers as on a CPU with AVX2 alone
	$(OLD_CPU) $(BIN)/pytest -m "not slow and not alone" --numprocesses 2 --dist worksteal \
	  tests/unit/models tests/unit/engine tests/unit/samplers tests/contract/test_engine*.py \
	  tests/integration/test_*parity*.py tests/integration/test_deterministic_mode.py tests/integration/test_quantization.py

test-all: $(READY) ## run all tests
	$(BIN)/pytest

check: $(READY) ## style, types, layers, secrets, known vulnerabilities, vendored modules, the reference, the chart and links
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/scan_secrets.py
	$(BIN)/python scripts/audit_dependencies.py
	$(BIN)/python scripts/check_vendored.py
	$(BIN)/python scripts/make_reference.py --check
	$(BIN)/python scripts/make_chart.py --check
	$(BIN)/python scripts/make_typescript.py --check
	$(BIN)/python scripts/build_site.py

docs: $(READY) ## build the documents into a site that can be searched: out/site/index.html
	$(BIN)/python scripts/build_site.py

typescript: $(READY) ## write the types of clients/typescript from the API; needs npm
	cd clients/typescript && npm ci --no-audit --no-fund --ignore-scripts
	$(BIN)/python scripts/make_typescript.py

reference: $(READY) ## write the tables of docs/reference from the declarations in the code
	$(BIN)/python scripts/make_reference.py

dashboards: $(READY) ## draw the dashboards of a server under load into docs/images; needs npm, Chromium and Prometheus
	$(BIN)/python scripts/make_dashboards.py
	$(BIN)/python scripts/draw_dashboards.py --minutes 10 --to docs/images

wheel: $(READY) ## build the package, and the weights of the bundled models, into dist
	$(BIN)/python -m build
	$(BIN)/python -m build --wheel --outdir dist src/diffuserve/models/bundled/packed

chart: $(READY) ## write the Helm chart of deploy/helm from the manifests of deploy/kubernetes
	$(BIN)/python scripts/make_chart.py

fmt: $(READY) ## format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

emoji-packages: $(READY) ## fetch the published pictures that tiny-emoji is trained on, by npm
	$(BIN)/python training/tiny_emoji/emoji_packages.py

gpu-kit: $(READY) ## fetch what a machine with a GPU and no network lacks, and say what to run there
	$(BIN)/python scripts/gpu_kit.py

bench: $(READY) ## run a benchmark, NAME=engine ARGS="--rounds 3", or list them; leave the machine alone
	$(BIN)/python -m benchmarks $(NAME) $(ARGS)

chaos: $(READY) ## kill -9 everything again and again: no accepted job may be lost or published twice
	$(BIN)/python -m benchmarks chaos

chaos-long: $(READY) ## the same for up to an hour: 10,000 jobs, 600 faults, full disks, a bad network and clock
	$(BIN)/python -m benchmarks chaos --long --hours 3

clean: ## remove everything that was made
	rm -rf .venv out dist build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
