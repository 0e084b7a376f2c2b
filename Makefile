# Everything runs from .venv, made on the first call with any Python >= 3.11. Another: make demo PYTHON=/path/to/python
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test opensearch attack lint docs bench clean

PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --editable

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/core.stamp  ## index the bundled collection, search it, evaluate it
	@$(BIN)/tamis demo

test: lint  ## lint, type-check and test
	$(BIN)/pytest -n 2 --dist loadfile

opensearch: $(VENV)/test.stamp  ## build a cluster of OpenSearch (Debian only) and run the tests that need one
	$(BIN)/python tools/opensearch/build.py build/opensearch
	$(BIN)/pytest -m opensearch tests/opensearch

attack: $(VENV)/test.stamp  ## the fuzzers and fault injectors, for long
	TAMIS_ATTACK=long $(BIN)/pytest -n 2 --dist loadfile tests/attack

lint: $(VENV)/test.stamp  ## ruff, mypy and the layers of the packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(VENV)/test.stamp  ## build the documentation into site/
	$(BIN)/python tools/docs_site.py site

bench: $(VENV)/bench.stamp  ## time the first stage beside other engines
	$(BIN)/python bench/first_stage.py

clean:  ## remove .venv and what tools leave behind
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache src/*.egg-info
	find src tests bench repro tools -name __pycache__ -type d -prune -exec rm -rf {} +

# A candidate is tried, not only looked up: a version manager's shim can exist and fail.
USABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))

$(BIN)/python:
	@python=; for candidate in $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11 python3 python); do \
	    if "$$candidate" -c '$(USABLE)' >/dev/null 2>&1; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo 'tamis needs Python 3.11 or newer with venv and pip, and found none' \
	        '$(if $(PYTHON),at $(PYTHON),among python3.13 python3.12 python3.11 python3 python):' \
	        'install it (Debian, Ubuntu: apt install python3 python3-venv) or name one: make PYTHON=/path/to/python' >&2; \
	    exit 1; \
	fi; \
	rm -rf $(VENV); \
	echo "Making $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/core.stamp: pyproject.toml | $(BIN)/python
	@echo 'Installing tamis into $(VENV)'
	@$(PIP_INSTALL) .
	@touch $@

# torch is asked for by name, first and alone: as a dependency of something else it may come with gigabytes for GPUs
$(VENV)/test.stamp $(VENV)/bench.stamp: $(VENV)/torch.stamp

$(VENV)/torch.stamp: | $(BIN)/python
	@echo 'Installing $(TORCH) into $(VENV)'
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input $(TORCH)
	@touch $@

$(VENV)/%.stamp: pyproject.toml | $(BIN)/python
	@echo 'Installing tamis with its $* tools into $(VENV)'
	@$(PIP_INSTALL) '.[$*]'
	@touch $(VENV)/core.stamp $@
