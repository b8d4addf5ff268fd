# The project's chores. Each target makes its own virtual environment in .venv; nothing else on the machine is changed.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Python compiles what it imports; all files of all packages would take a minute.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
CONFIG := configs/llama-3-8b-8xh100.yaml
# Three workers for two cores, because tests of browsers and of other processes wait during much of their time.
TESTS := -n 3 --dist loadfile --no-loadscope-reorder --benchmark-disable -m "not alone and not slow and not gpu"
ALONE := $(shell grep -lr "mark\.alone" --include="test_*.py" tests)
# Compiled modules are kept even if the environment says otherwise: hundreds of processes of the tests import the same.
unexport PYTHONDONTWRITEBYTECODE
PAGES := first_answers glossary schedule_docs gallery cost_docs accuracy_docs reliability_docs synthesis_docs choosing_docs \
	communicator_docs towers_docs fill_docs flags_page pages \
	command_docs browser_pictures notebooks

.PHONY: help demo test lint ruff pyright imports check unit-test prepare-browser coverage fuzz fuzz-engines bench docs site dist clean

help:
	@echo "make demo   simulate a real model and the change that helps most; two pictures in demo/"
	@echo "make test   lint, type check and all tests"
	@echo "make lint   ruff, pyright and import-linter"
	@echo "make check  the gate on configs/: no measure is worse than in configs/baseline.json"
	@echo "make coverage  lines and branches that no test runs"
	@echo "make fuzz   damaged files, signals and random programs, for half an hour"
	@echo "make fuzz-engines  a long comparison of the two engines, for an hour"
	@echo "make bench  the benchmarks"
	@echo "make docs   pages and pictures that are made by scripts"
	@echo "make site   the documentation as web pages, with a live page, in build/site"
	@echo "make dist   wheel and source distribution, in dist/"
	@echo "make clean  remove .venv, demo/ and caches"

# The stamps are files, so that a change of pyproject.toml rebuilds the environment.
$(VENV)/pyvenv.cfg: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("ppsim needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; say make PYTHON=python3.11")'
	$(PYTHON) -m venv --clear $(VENV)

$(VENV)/installed: $(VENV)/pyvenv.cfg
	$(INSTALL) --editable .
	@touch $@

$(VENV)/installed-for-tests: $(VENV)/pyvenv.cfg
	$(INSTALL) --editable '.[test]'
	@touch $(VENV)/installed $@

demo: $(VENV)/installed
	@$(BIN)/python scripts/make_demo.py $(CONFIG) demo

test: $(VENV)/installed-for-tests
	@$(MAKE) --no-print-directory --jobs 2 lint check prepare-browser
	@$(MAKE) --no-print-directory unit-test

# The last line says whether the tests in a browser ran.
unit-test: prepare-browser
	$(BIN)/python -m pytest $(TESTS)
	$(BIN)/python -m pytest --benchmark-disable -m "alone" $(ALONE)
	@$(BIN)/python tests/browser/chromium.py

prepare-browser: $(VENV)/installed-for-tests
	-@$(BIN)/python tests/browser/chromium.py prepare

fuzz: $(VENV)/installed-for-tests
	rm -rf build/fuzz
	PPSIM_FUZZ_RECORD=build/fuzz PPSIM_FUZZ_EXAMPLES=100 $(BIN)/python -m pytest -n 2 tests/fuzz tests/browser/test_markup.py
	$(BIN)/python scripts/make_reliability_docs.py build/fuzz

# 10^5 comparisons of the engines, which `make fuzz` has 1,000 of; their counts are added to those of its run.
fuzz-engines: $(VENV)/installed-for-tests
	PPSIM_FUZZ_RECORD=build/fuzz PPSIM_FUZZ_EXAMPLES=10000 $(BIN)/python -m pytest tests/fuzz/test_programs.py -k equal_bits
	$(BIN)/python scripts/make_reliability_docs.py build/fuzz

# Tracing doubles the time of the tests, so that CI does not run this. Loops that Numba compiles count as missed.
coverage: $(VENV)/installed-for-tests
	$(BIN)/python -m pytest $(TESTS) --cov=ppsim --cov-report=term-missing

lint: ruff pyright imports

ruff: $(VENV)/installed-for-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

pyright: $(VENV)/installed-for-tests
	$(BIN)/pyright --pythonpath $(BIN)/python

imports: $(VENV)/installed-for-tests
	$(BIN)/lint-imports

check: $(VENV)/installed
	$(BIN)/ppsim check configs/*.yaml --baseline configs/baseline.json

bench: $(VENV)/installed-for-tests
	@mkdir -p .benchmarks
	$(BIN)/python -m pytest benchmarks --benchmark-only --benchmark-timer=benchmarks.timers.processor_seconds --benchmark-json=.benchmarks/latest.json
	$(BIN)/python scripts/make_performance_docs.py .benchmarks/latest.json

docs: $(VENV)/installed-for-tests
	for page in $(PAGES); do $(BIN)/python scripts/make_$$page.py || exit 1; done

$(VENV)/installed-for-docs: $(VENV)/installed
	$(INSTALL) --editable '.[docs]'
	@touch $@

site: $(VENV)/installed-for-docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/site
	$(BIN)/python scripts/make_live_page.py build/site/live
	@echo "open build/site/index.html"

dist: $(VENV)/installed
	$(INSTALL) build
	$(BIN)/python -m build --outdir dist .

clean:
	rm -rf $(VENV) demo build dist .pytest_cache .ruff_cache .hypothesis .benchmarks
