# Two commands set everything up on a fresh machine: `make app` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: app test lint bench demo clean

app: $(VENV)/.installed  ## install what the dashboard needs, then open it with the demo models, offline
	$(BIN)/python -m streamlit run app.py --server.address=localhost

test: $(VENV)/.installed-dev  ## the whole test suite, the browser tests with it
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev  ## style, types and the import contract
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed-dev  ## the measured comparisons that the README quotes
	$(BIN)/python -m pip install --quiet -r requirements-bench.txt
	$(BIN)/python -m benchmarks

demo: $(VENV)/.installed-dev  ## train the demo models again, on two cores, from texts that packages carry
	$(BIN)/python -m embcompare.demo.build

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "embcompare needs Python 3.11 or newer; say which with: make PYTHON=python3.11 app")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -r requirements.txt
	touch $@

$(VENV)/.installed-dev: requirements-dev.txt requirements-test-models.txt $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --no-deps -r requirements-test-models.txt
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
