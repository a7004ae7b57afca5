# Everything that these targets need beyond Python 3.11-3.13 and make is installed by them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DATA   := $(or $(MEDFEDVQA_DATA),../shared/data)

.PHONY: demo test test-fast lint wheel-test docs clean

demo: $(VENV)/ready
	$(BIN)/medfedvqa demo --data-root $(DATA)

test: $(VENV)/ready lint wheel-test
	$(BIN)/python -m pytest -n 2 --dist loadgroup

test-fast: $(VENV)/ready
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow"

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/mypy

wheel-test: $(VENV)/ready
	$(BIN)/python tests/wheel.py

docs: $(VENV)/ready
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --doctree-dir build/doctrees docs site

$(VENV)/ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(BIN)/python -c "import torch, torchvision, open_clip"
	touch $@

clean:
	rm -rf $(VENV) dist build site
