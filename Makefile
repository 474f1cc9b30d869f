# `make` alone lists the commands.
PYTHON ?= python3
TORCH ?= torch
VENV ?= .venv
PORT ?= 8501
BIN := $(VENV)/bin
LIGHT := $(VENV)/.light
TESTED := $(VENV)/.tested

.DEFAULT_GOAL := help
.PHONY: help app test validate published lint bench pictures clean

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Everything of requirements.txt that the app needs: no torch, no jupyter.
$(LIGHT): requirements.txt | $(BIN)/python
	grep -vE '^(torch|jupyter|#|$$)' requirements.txt > $(VENV)/light.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(VENV)/light.txt
	touch $@

app: $(LIGHT)  ## install what the app needs (no torch) and start it
	@echo "The app is at http://127.0.0.1:$(PORT)  (Ctrl-C stops it)"
	@$(BIN)/python -m streamlit run app.py --server.port $(PORT)

# Tests use a torch that is there already, else install $(TORCH).
$(TESTED): requirements.txt requirements-test.txt $(LIGHT)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-test.txt
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	touch $@

test: $(TESTED) browser lint  ## install what the tests need and run them all, the browser's too
	@$(BIN)/python -c "import matplotlib, playwright, streamlit, torch"  # or their tests would be skipped in silence
	NOTHING_MISSING=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile tests

.PHONY: browser
browser:
	@command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 && apt-get update -qq && apt-get install -y -qq chromium; } || \
	  $(BIN)/python -m playwright install chromium || true

lint: $(TESTED)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy simulator

validate: $(TESTED)  ## run real torch.distributed processes here and print how far off the simulator is
	$(BIN)/python -m simulator.validation

published: $(LIGHT)  ## predict published measurements and print the errors by family
	$(BIN)/python -m simulator.validation published

bench: $(LIGHT)  ## print how fast it is, beside the figures of other simulators
	$(BIN)/python -m tests.bench

pictures: $(TESTED) browser  ## make the README's pictures again
	$(BIN)/python -m tests.pictures

clean:  ## remove what the commands above made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
