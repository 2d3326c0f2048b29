# Everything starts from a bare machine with Python 3.11-3.13 and ~12 GB of disk. `make demo` shows the product, `make test`
# proves it. Both build .venv first: upstream SGLang with all it needs takes some minutes, once.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
SOURCES = $(shell find sglang_ext patches -type f ! -name '*.pyc') pyproject.toml setup.py sglang_ext.pth
# The rig needs bytecode caches: without them every one of a server's processes compiles some 4,000 modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test unit lint docs bench clean

demo: $(VENV)/installed
	$(BIN)/python -m tests.rig.demo

test: lint
	$(BIN)/python -m pytest

unit: $(VENV)/installed
	$(BIN)/python -m pytest -m "not e2e"

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/check_patches.py

docs: $(VENV)/installed
	$(BIN)/python tools/reasons_doc.py --write

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks.micro

# Upstream and the tools, from the index, once ...
$(VENV)/upstream: pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(not (3, 11) <= v < (3, 14) and f"Python 3.11-3.13 is needed, found {v[0]}.{v[1]}; run: make PYTHON=python3.12 ...")'
	@echo "== installing upstream SGLang and our tools into $(VENV) (some 11 GB; minutes)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check '.[dev]'
	touch $@

# ... and ourselves as a user would, again whenever a source changed.
$(VENV)/installed: $(VENV)/upstream $(SOURCES)
	@echo "== installing sglang-ext itself into $(VENV)"
	$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps --force-reinstall .
	touch $@

clean:
	rm -rf $(VENV) .rig build *.egg-info
