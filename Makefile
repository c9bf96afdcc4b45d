# Commands for people and for continuous integration; `make help` lists them.

VENV ?= .venv
# The newest that works here; its packages are pinned in python/requirements-VERSION.lock.
ifeq ($(origin PYTHON),undefined)
PYTHON := $(shell .ci/find-python)
endif
PY := $(VENV)/bin/python
BUILD ?= build
JOBS ?= $(shell nproc)
CXX_FILES = $(shell git ls-files 'compiler/*.cpp' 'compiler/*.h' 'dialects/*.cpp' 'dialects/*.h' 'python/*.cpp' 'test/*.cpp' 'test/*.h')

# Compiler caches are shared between checkouts; precompiled headers need the sloppiness.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_SLOPPINESS := pch_defines,time_macros,include_file_mtime,include_file_ctime
export ALPA_BUILD := $(abspath $(BUILD))
export ALPA_PYTHON := $(abspath $(PY))

.PHONY: help setup build demo test test-full lint docs lit pytest sanitize odr bench wheel format lock clean
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: ## Install what is missing: system packages and the Python environment
	@VENV=$(VENV) PYTHON=$(PYTHON) .ci/setup

# `setup` writes it anew when the packages change, maybe with another version of Python.
$(VENV)/.lock: setup ;

$(BUILD)/build.ninja: $(VENV)/.lock
	@echo "== configuring"
	@cmake --fresh -S . -B $(BUILD) -G Ninja -DPython_EXECUTABLE=$(abspath $(PY)) $(CMAKE_FLAGS) > $(BUILD).log 2>&1 \
	  && mv $(BUILD).log $(BUILD)/configure.log || { cat $(BUILD).log; rm -rf $(BUILD).log $(BUILD)/CMakeCache.txt $(BUILD)/CMakeFiles; exit 1; }

build: setup $(BUILD)/build.ninja ## Build alpa-opt, alpa-solve and the native module
	@echo "== building"
	@ninja -C $(BUILD) -j$(JOBS)

demo: build ## Train a small GPT, parallelized, on 8 virtual devices
	@echo "== training a small GPT on 8 virtual devices"
	@$(PY) examples/train_gpt.py

test: build lint docs lit pytest ## Run every check and every test

test-full: test ## Run the slow tests too: the wheel, long comparisons and damaged inputs
	@echo "== slow tests"
	@XLA_FLAGS=--xla_backend_optimization_level=3 $(PY) -m pytest -m slow -n $(JOBS) --dist loadfile

lint: setup ## Check formatting, types and spelling
	@echo "== lint"
	@$(VENV)/bin/clang-format --dry-run --Werror $(CXX_FILES)
	@$(VENV)/bin/ruff check -q . && $(VENV)/bin/ruff format -q --check .
	@$(VENV)/bin/pyright --pythonpath $(PY)
	@for package in alpa_mlir alpa_runtime; do \
	  types=$$(PYTHONPATH=python:runtime $(VENV)/bin/pyright --pythonpath $(PY) --verifytypes $$package --ignoreexternal) \
	  || { echo "$$types" | grep -B1 -A3 'error:'; exit 1; }; done
	@$(VENV)/bin/typos

docs: build ## Build the documentation into build/site; a warning is an error
	@echo "== documentation"
	@PYTHONPATH=python:runtime $(PY) -m sphinx -q -E -a -W --keep-going -j $(JOBS) -c docs/site -d $(BUILD)/docs docs $(BUILD)/site
	@echo "   $(BUILD)/site/index.html"

lit: build ## Run the compiler's tests
	@echo "== compiler tests"
	@$(VENV)/bin/lit -q -s -j$(JOBS) test

pytest: build ## Run the Python tests
	@echo "== Python tests"
	@$(PY) -m pytest -n $(JOBS) --dist loadfile

sanitize: setup ## Run the compiler's and the solver's tests with address and undefined-behaviour checks
	@clang++-22 -print-runtime-dir | grep -q ^/ || { echo "sanitize: install libclang-rt-22-dev" >&2; exit 1; }
	@echo "== building with sanitizers"
	@cmake -S . -B $(BUILD)-sanitize -G Ninja -DPython_EXECUTABLE=$(abspath $(PY)) -DALPA_BUILD_PYTHON=OFF \
	  -DALPA_SANITIZE=address,undefined $(CMAKE_FLAGS) > /dev/null
	@ninja -C $(BUILD)-sanitize -j$(JOBS)
	@echo "== compiler tests with sanitizers"
	@ALPA_BUILD=$(abspath $(BUILD)-sanitize) $(VENV)/bin/lit -q -s -j$(JOBS) test

odr: setup ## Compare the definitions of each class in all files, by the warnings of GCC's LTO
	@echo "== linking with LTO"
	@cmake -S . -B $(BUILD)-odr -G Ninja -DPython_EXECUTABLE=$(abspath $(PY)) -DALPA_BUILD_PYTHON=OFF \
	  -DALPA_BUILD_TESTS=OFF -DALPA_ODR=ON -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DCMAKE_C_COMPILER=gcc -DCMAKE_CXX_COMPILER=g++ \
	  -DCMAKE_AR=$$(command -v gcc-ar) -DCMAKE_RANLIB=$$(command -v gcc-ranlib) $(CMAKE_FLAGS) > /dev/null
	@ninja -C $(BUILD)-odr -j$(JOBS) alpa-opt alpa-solve

bench: build ## Measure planning and step time of GPT models
	@$(PY) benchmark/gpt_planning.py

wheel: setup ## Build wheels of both packages and of the runtime alone, and a source archive, into dist/
	@echo "== building the wheel"
	@$(PY) -m pip wheel -q --no-build-isolation --no-deps -w build-wheel/dist .
	@PATH=$(abspath $(VENV))/bin:$$PATH $(PY) -m auditwheel repair -w dist build-wheel/dist/*.whl > build-wheel/repair.log 2>&1 \
	  || { cat build-wheel/repair.log; exit 1; }
	@rm -r build-wheel/dist
	@$(PY) -m pip wheel -q --no-build-isolation --no-deps -w dist ./runtime
	@$(PY) -c "from scikit_build_core.build import build_sdist; build_sdist('dist')" > /dev/null
	@ls -1 dist/*

format: setup ## Rewrite sources in the project's format
	@$(VENV)/bin/clang-format -i $(CXX_FILES)
	@$(VENV)/bin/ruff check -q --fix . ; $(VENV)/bin/ruff format -q .

lock: ## Pin the newest versions that requirements.in allows, for the version of PYTHON
	@version=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])') && rm -rf build/lock && \
	  $(PYTHON) -m venv build/lock && build/lock/bin/pip install -q -r python/requirements.in && \
	  (echo "# Made by \`make lock\` from requirements.in; exact versions for Python $$version on Linux."; \
	  build/lock/bin/pip freeze) > python/requirements-$$version.lock

clean: ## Remove what was built (not the Python environment)
	@rm -rf $(BUILD) $(BUILD)-sanitize $(BUILD)-odr build-wheel dist docs/generated python/alpa_mlir/_native*.so
