# make demo   set up and run the main job        make test   set up and pass every test
# Both reuse .venv once it is complete; `make clean` removes it.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q
READY := $(VENV)/.ready
OLD_SGLANG := $(VENV)/sglang-0.5.22
FRAMEWORKS := $(VENV)/frameworks
# Properties are tried on the same examples every time; `.venv/bin/python -m pytest tests/property` tries others.
PYTEST = $(BIN)/python -m pytest --hypothesis-profile=ci
ENGINE_TESTS = KVFLOW_TEST_OLD_SGLANG=$(abspath $(OLD_SGLANG)) KVFLOW_TEST_FRAMEWORKS=$(abspath $(FRAMEWORKS)) $(PYTEST) -v tests/engine tests/e2e

.PHONY: demo test unit lint types setup clean help

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

setup: $(READY)  ## create the environment

$(READY): pyproject.toml requirements/torch.txt requirements/engine-cpu.txt requirements/dev.txt
	@echo "setting up $(VENV): torch, SGLang on the CPU, kvflow (about three minutes, 3 GB)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -r requirements/torch.txt
	@$(PIP) install --no-deps -r requirements/engine-cpu.txt -r requirements/dev.txt
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(OLD_SGLANG)/.ready: requirements/sglang-0.5.22.txt | $(READY)
	@$(PIP) install --no-deps --upgrade --target $(OLD_SGLANG) -r $<
	@touch $@

$(FRAMEWORKS)/.ready: requirements/frameworks.txt | $(READY)
	@$(PIP) install --no-deps --upgrade --target $(FRAMEWORKS) -r $<
	@touch $@

demo: $(READY)  ## run a multi-agent program against SGLang with and without kvflow
	@$(BIN)/kvflow demo

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q .
	@$(BIN)/lint-imports

types: $(READY)  ## pyright; needs node, so it is not part of `make test`
	@$(BIN)/pyright

unit: $(READY)  ## everything that needs no SGLang
	@$(PYTEST) -q -n 2 --dist loadfile tests/unit tests/property tests/client tests/test_house.py

test: $(READY) $(OLD_SGLANG)/.ready $(FRAMEWORKS)/.ready lint unit  ## every test
	@PYTHONPATH=$(FRAMEWORKS) $(PYTEST) -q \
		tests/client/test_langgraph.py tests/client/test_langgraph_graphs.py tests/client/test_openai_agents.py \
		tests/client/test_openai.py tests/client/test_httpx.py tests/client/test_segments.py
	@$(ENGINE_TESTS) -n 2 --dist loadfile -m beside
	@$(ENGINE_TESTS) -m "not beside"

clean:  ## remove the environment and what runs left behind
	rm -rf $(VENV) .demo build dist
