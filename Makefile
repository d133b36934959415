# Every command of the project. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
EXTRAS := train,distill,postgres,tracing,ray,bench,dev

HOST ?= 127.0.0.1
PORT ?= 8000
WORKERS ?= 1
BUNDLE ?= models/larkfield

DATA ?=
RECIPE ?= default
OUT ?= runs/$(RECIPE)
ARGS ?=

# No library reports its usage to its makers.
export ORT_DISABLE_TELEMETRY ?= 1
export HF_HUB_DISABLE_TELEMETRY ?= 1
export RAY_USAGE_STATS_ENABLED ?= 0
export DO_NOT_TRACK ?= 1

# One thread a process: tests and workers run side by side on few cores.
TEST_ENV := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
PYTEST := $(TEST_ENV) $(PY) -m pytest -n 2 --dist loadscope

.PHONY: help
help:  ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'
	@echo
	@echo "  make serve PORT=8000 HOST=127.0.0.1 WORKERS=1 BUNDLE=models/larkfield"
	@echo "  make train DATA=tickets.csv RECIPE=default OUT=runs/mine ARGS='--text-column body --team-column queue'"

# ------------------------------------------------------------------ setting up
$(PY):
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed, this is %d.%d: name another one with PYTHON=" % sys.version_info[:2]'
	@$(PYTHON) -m venv $(VENV)

# A stamp says what is installed; what serving needs is a part of everything.
PIP_INSTALL := $(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt

$(VENV)/.serving: pyproject.toml constraints.txt | $(PY)
	@echo "Installing what serving needs into $(VENV) (about 550 MB, once)"
	@$(PIP_INSTALL) -e '.[serve]'
	@touch $@

$(VENV)/.everything: pyproject.toml constraints.txt | $(PY)
	@echo "Installing everything that the tests need into $(VENV) (some GB, once)"
	@$(PIP_INSTALL) -e '.[$(EXTRAS)]'
	@touch $@ $(VENV)/.serving

$(VENV)/.training: pyproject.toml constraints.txt | $(PY)
	@echo "Installing what training needs into $(VENV) (some GB, once)"
	@$(PIP_INSTALL) -e '.[train,distill]'
	@touch $@ $(VENV)/.serving

.PHONY: packages
packages:  ## install the system packages that tests need (root and apt only; elsewhere those tests skip)
	@.ci/packages

# ------------------------------------------------------------------ the main job
.PHONY: serve
serve: $(VENV)/.serving  ## start the router (PORT, HOST, WORKERS, BUNDLE)
	@exec $(PY) -m service --host $(HOST) --port $(PORT) --workers $(WORKERS) --bundle $(BUNDLE)

.PHONY: train
train: $(VENV)/.training  ## train a bundle (DATA, RECIPE, OUT; without DATA: on synthetic tickets)
	@exec $(PY) -m training.train $(if $(DATA),--data $(DATA)) --recipe $(RECIPE) --out $(OUT) $(ARGS)

# ------------------------------------------------------------------ checks
.PHONY: test
test: packages $(VENV)/.everything lint  ## lint, and every test but the slow ones
	$(PYTEST) -m 'not slow' $(ARGS)

.PHONY: test-slow
test-slow: packages $(VENV)/.everything  ## the slow tests
	$(PYTEST) -m slow $(ARGS)

.PHONY: test-helpdesk
test-helpdesk: packages $(VENV)/.everything  ## the connector beside real helpdesks (a part of test-slow)
	$(PYTEST) -m slow tests/service/connect $(ARGS)

.PHONY: lint
lint: $(VENV)/.everything  ## ruff, mypy, and the arrows between the rooms
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

.PHONY: format
format: $(VENV)/.everything  ## let ruff rewrite what it can
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

.PHONY: kernel-check
kernel-check: $(VENV)/.everything  ## the whole proof of the attention kernel, on the CPU
	@exec $(PY) -m kernels.check

.PHONY: gpu-check
gpu-check:  ## the kernel on a GPU: grid, sanitizer, times (needs a device; ARGS="--out …", ARGS=--dry-run without one)
	@if $(PYTHON) -c 'import torch, cuda.core, cuda.bindings.nvrtc' 2>/dev/null; then \
		exec $(PYTHON) -m kernels.gpu_check $(ARGS); \
	else \
		$(MAKE) --no-print-directory $(VENV)/.training && exec $(PY) -m kernels.gpu_check $(ARGS); \
	fi

# ------------------------------------------------------------------ measuring, watching
.PHONY: bench
bench: packages $(VENV)/.everything  ## how fast the service is, beside other servers
	@exec $(PY) -m service.tools.bench

.PHONY: soak
soak: packages $(VENV)/.everything  ## overload, reloads, shutdowns, lost workers; counts every request
	@exec $(PY) -m service.tools.soak

.PHONY: watch
watch: packages $(VENV)/.everything  ## service, load and a real Prometheus for two minutes
	@exec $(PY) -m service.tools.watch

.PHONY: archive
archive: $(VENV)/.everything  ## route an archive of tickets through Ray (DATA, ARGS="--out …")
	@exec $(PY) deploy/ray/archive.py $(DATA) $(ARGS)

.PHONY: screenshot
screenshot: packages $(VENV)/.everything  ## take the README's picture of the page
	@exec $(PY) -m service.tools.screenshot

.PHONY: clean
clean:  ## remove the environment and every cache
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
