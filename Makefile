# `make serve` and `make test` do their own set-up; `make help` lists everything.
.DEFAULT_GOAL := help
.PHONY: help setup setup-test serve check test docs clean

BIN := .venv/bin
PY := $(BIN)/python
CODE := gateway engine policies tenants telemetry loadgen tests
# Their tests on the real model only compute; those that start servers have the machine alone.
COMPUTING := tests/runtime tests/text

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Else each of the hundred processes of a test run compiles all that it imports.
test: export PYTHONDONTWRITEBYTECODE =

setup:
	@sh scripts/setup.sh run

setup-test:
	@sh scripts/setup.sh test

serve: setup  ## Serve the default model to two demo tenants on 127.0.0.1:8000
	@$(BIN)/watermaster model pull
	@$(BIN)/watermaster demo
	@exec $(BIN)/watermaster serve

check: setup-test  ## Style, types and import contracts
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check  ## Everything CI runs: `make check`, then all tests
	$(PY) -m pytest -m "not model and not server and not kernels" -n 2 --dist worksteal
	$(PY) -m pytest -m kernels -n 2 --dist worksteal tests/runtime/kernels
	$(PY) -m pytest -m "model or server" -n 2 --dist worksteal $(COMPUTING)
	$(PY) -m pytest -m "model or server" $(COMPUTING:%=--ignore=%)

docs: setup  ## Write docs/configuration.md and watermaster.example.toml anew
	$(BIN)/watermaster config docs > docs/configuration.md
	$(BIN)/watermaster config example > watermaster.example.toml

clean:  ## Remove .venv and what tools left behind; models and tenants stay
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
