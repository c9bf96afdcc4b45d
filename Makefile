# Commands for people and for CI. `make help` lists them.

VENV ?= .venv
PY := $(VENV)/bin/python
BUILD ?= build
JOBS ?= $(shell nproc)
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1

.PHONY: help build
help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(BUILD)/build.ninja:
	cmake -S . -B $(BUILD) -G Ninja -DPython_EXECUTABLE=$(abspath $(PY)) $(CMAKE_FLAGS)

build: $(BUILD)/build.ninja ## Build alpa-opt, alpa-solve and the native module
	ninja -C $(BUILD) -j$(JOBS)
