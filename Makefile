# `make` alone lists the targets. Everything runs from .venv, which `make setup` makes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup run test check fix bench bench-full bench-extra clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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

bench: setup ## RMixer beside a shell loop, parallel, task-spooler, Ray Tune; ARGS=--quick: 5 minutes
	python benchmarks/bench.py $(ARGS)

bench-full: setup ## the same with more repeats and runners, then the other benchmarks: hours
	python benchmarks/bench.py --full $(ARGS)
	for one in together memtracker colocate trainer exactness reading quality interference estimate \
		colocation_pairs; do python benchmarks/$$one.py || exit 1; done

bench-extra: ## Ray Tune in .venv-ray, for bench; parallel and task-spooler come with the system
	test -x .venv-ray/bin/python || $(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python -m pip install --quiet -c constraints.txt -e '.[bench]'
	@for one in parallel tsp; do command -v $$one >/dev/null || \
		echo "no $$one: apt-get install parallel task-spooler"; done

clean: ## remove what the tools leave behind (not .venv, not runs/)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} +
