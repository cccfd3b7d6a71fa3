# make run    set up and run all stages on the embedded default
# make test   set up with the tools of development and run the whole test suite
# make help   the other targets

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell command -v python3.11 || command -v python3)
ARGS ?=

# Nothing calls home.
export KEDRO_DISABLE_TELEMETRY := 1
export DO_NOT_TRACK := 1
export MLFLOW_DISABLE_TELEMETRY := true
export HF_HUB_DISABLE_TELEMETRY := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

RUN_STAMP := $(VENV)/.ready-run
DEV_STAMP := $(VENV)/.ready-dev

PIP_COMPILE = $(BIN)/pip-compile --quiet --strip-extras --allow-unsafe --no-header --no-annotate \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options
# A local build of a package, such as torch for the CPU, satisfies a pin without its suffix.
UNLOCAL = sed -i -E 's/^([A-Za-z0-9_.-]+==[^+ ]+)\+[A-Za-z0-9.]+/\1/'

.PHONY: help run test test-fast test-exhaustive mutants lint viz ui lock

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1: /'

run: $(RUN_STAMP)  ## set up, then all stages; ARGS="--pipelines selection" for one of them
	$(BIN)/kedro run $(ARGS)

test: $(DEV_STAMP)  ## set up, then the test suite; ARGS="tests/dp" for a part of it
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not exhaustive" $(ARGS)

test-fast: $(DEV_STAMP)  ## the tests that take seconds
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not slow and not exhaustive" $(ARGS)

test-exhaustive: $(DEV_STAMP)  ## what is too long for every change: whole grids, many repetitions, kills
	$(BIN)/python -m pytest -n auto --dist worksteal -m exhaustive $(ARGS)

mutants: $(DEV_STAMP)  ## plant faults one by one: the suite has to notice each; ARGS="--jobs 4" for more at a time
	$(BIN)/python -m mutants $(ARGS)

lint: $(DEV_STAMP)  ## ruff, mypy and the layers between packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

viz: $(RUN_STAMP)  ## the pipelines as a picture, in the browser
	$(BIN)/kedro viz run $(ARGS)

ui: $(RUN_STAMP)  ## the recorded runs, in the browser
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false $(BIN)/mlflow ui --workers 1 \
		--backend-store-uri "sqlite:///$(CURDIR)/mlflow.db" $(ARGS)

lock: $(DEV_STAMP)  ## pin the newest versions that pyproject.toml allows
	$(PIP_COMPILE) --upgrade -o requirements.lock pyproject.toml
	$(UNLOCAL) requirements.lock
	$(PIP_COMPILE) --upgrade --extra dev --constraint requirements.lock -o requirements-dev.lock pyproject.toml
	$(UNLOCAL) requirements-dev.lock

# A virtual environment whose making was interrupted has a python but no pip, and is made anew.
define MAKE_VENV
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
	|| { echo "Python 3.11 is needed: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
endef

# A stamp is written last, so that an interrupted set-up is done again, and a changed lock makes it old.
$(RUN_STAMP): requirements.lock pyproject.toml
	$(MAKE_VENV)
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(DEV_STAMP): requirements-dev.lock pyproject.toml
	$(MAKE_VENV)
	$(BIN)/python -m pip install --quiet -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@ $(RUN_STAMP)
