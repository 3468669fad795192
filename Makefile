# `make demo` draws a picture on this machine's CPU; `make test` runs what CI runs. Both set themselves up.

# The first Python that EPE supports; choose another one with `make demo PYTHON=/path/to/python3.12`.
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c '$(SUPPORTED)' 2>/dev/null && echo $$python && break; done)

VENV := .venv
BIN := $(VENV)/bin
PINS := constraints-cpu.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq --constraint $(PINS)

PICTURE := outputs/demo.png

.DEFAULT_GOAL := help
.PHONY: help demo test check format docs dist clean

help:
	@echo "make demo    set up, and draw a picture on the CPU: $(PICTURE)"
	@echo "make test    set up, and run all checks and tests, as CI does"
	@echo "make check   the checks alone: style, types, imports between rooms"
	@echo "make format  put the code into shape"
	@echo "make docs    build the documentation into site/"
	@echo "make dist    build the wheel and the source archive into dist/"
	@echo "make clean   remove the environment and everything that was built"

demo: $(VENV)/.run
	OMP_NUM_THREADS=1 $(BIN)/epe generate --prompt "a red cube and a blue ball on a white table" --output $(PICTURE)
	@echo "The picture is $(PICTURE); its facts are in $(PICTURE:.png=.json)."

# Two workers: one starts the processes of the tests marked `world`, mostly waiting for them, the other one computes.
test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
# Its cache would keep an import as it was once resolved, though the module has come since.
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.test
	$(BIN)/mkdocs build --strict

dist: $(VENV)/.test
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) site dist outputs .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# The stamps say that the environment holds what these two files ask for.
$(VENV)/.run: pyproject.toml $(PINS)
	@test -n "$(PYTHON)" || { echo "EPE needs Python 3.11, 3.12 or 3.13; name one: make demo PYTHON=..."; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON); torch and the rest take some minutes at the first time."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip  # older ones do not know --group
	@$(PIP) torch  # pinned, and before what asks for a range of it: that could fetch gigabytes of CUDA
	@$(PIP) --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.run
	@$(PIP) --group dev
	@touch $@
