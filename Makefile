# `make` alone lists the targets. Everything runs from .venv, which `make setup` makes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup run test check fix bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with everything that training, tests and checks need

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[train,dev]'
	@touch $@

run: setup ## train the eight jobs of examples/quickstart.yaml side by side
	rmixer run examples/quickstart.yaml $(ARGS)

test: setup ## all tests; RMIXER_TEST_LONG=1 adds three that take minutes
	pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

check: setup ## lint, format, types
	ruff check .
	ruff format --check .
	mypy

fix: setup ## mend what lint and format can mend by themselves
	ruff check --fix .
	ruff format .

bench: setup ## measure co-location against running one by one, k at a time, all at once
	python benchmarks/colocate.py $(ARGS)

clean: ## remove what the tools leave behind (not .venv, not runs/)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} +
