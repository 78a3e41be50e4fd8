# Every target sets up what it needs in .venv: a fresh machine needs Python 3.11+ and make.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest

.PHONY: help demo test test-all lint types docs results clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: .venv/repro.stamp  ## train on the embedded digits with each method, and show the table and a report
	$(BIN)/pbwn demo

test: .venv/test.stamp  ## the tests that every change has to pass: a few minutes
	$(PYTEST) -n 2 --dist worksteal -m "not long"

test-all: .venv/test.stamp  ## the rest of the tests: every artefact and method, repeated kills, Ray, compilers, the site
	$(PYTEST) -n 2 --dist worksteal -m long

lint: .venv/test.stamp  ## ruff: style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/test.stamp  ## mypy, strict, on the library and the suite
	$(BIN)/mypy

docs: .venv/docs.stamp  ## the documentation site, in docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -n -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

results: .venv/repro.stamp  ## the report of the kept runs, in results/; RESULTS.md, docs/results.md, and the README's list and figure from it
	$(BIN)/python results/publish.py

clean:  ## remove the environment, the caches and the built documentation
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis docs/_build

# A stamp per extra: `make demo` does not have to wait for the test tools.
.venv/%.stamp: pyproject.toml constraints.txt
	@echo "setting up .venv with what '$*' needs: two or three minutes, once"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@
