# `make train` shows an agent that learns to search; `make test` runs the tests. Both need Python 3.11+ and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
CPU_INDEX := https://download.pytorch.org/whl/cpu
# Most of what is installed is never imported, so neither installer compiles it, which would take half a minute. Modules are
# compiled when they are imported, and that must be kept: else every process that a test starts compiles torch again (10 s).
export PYTHONDONTWRITEBYTECODE :=
PLUGS := trl,sb3,frameworks
PIP := $(BIN)/pip install --quiet --no-compile -c constraints.txt
# uv takes a quarter of pip's time. Where it is missing, or does not find what a configured pip finds, pip installs.
install = $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt $(1) 2>/dev/null || $(PIP) $(1)

.PHONY: train test test-plug plug lint docs clean
.DELETE_ON_ERROR:

train: $(VENV)/installed
	$(BIN)/python -m trainers.grpo $(ARGS)

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n auto $(ARGS)

# Other RL libraries on our environments, and agents of other frameworks, those that install in a minute; docs/plug.md has the rest.
test-plug: $(VENV)/installed-plug
	$(BIN)/python -m pytest -n auto -m plug tests/integrations $(ARGS)

# All of them, each in a virtual environment of its own: gigabytes. ARGS="--only gem trl" for some.
plug: $(VENV)/installed
	$(BIN)/python -m benchmarks.plug_matrix $(ARGS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The pages of docs/ as a site in site/, which needs no network; a link that leads nowhere is an error.
docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

# PyPI's torch brings gigabytes of CUDA on Linux. Without a GPU that of PyTorch's own index is taken, if that can be reached.
$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("make needs Python 3.11 or newer, and $(PYTHON) is %d.%d: make PYTHON=python3.12" % v[:2])'
	$(PYTHON) -m venv $(VENV)
	index=; if ! command -v nvidia-smi >/dev/null && $(BIN)/python -c \
	    "from urllib.request import urlopen; urlopen('$(CPU_INDEX)/torch/', timeout=5)" 2>/dev/null; \
	    then index="--index-url $(CPU_INDEX)"; fi; \
	    $(PIP) $$index torch
	-$(PIP) uv
	$(call install,-e .)
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(call install,-e ".[dev]")
	touch $@

$(VENV)/installed-plug: $(VENV)/installed-dev
	$(call install,-e ".[$(PLUGS)]")
	touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(call install,-e ".[docs]")
	touch $@

clean:
	rm -rf $(VENV) *.egg-info build dist site
