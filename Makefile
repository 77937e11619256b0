# One command each. `make TORCH=cuda ...` installs the default (CUDA) build of torch instead.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH ?= cpu
# Of tests and results: a processor each, at most 4, which need 2 GB of memory each.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((n < 4 ? n : 4)))

# Recorded data in a folder beside the repository; the library itself reads only this variable.
ifneq ($(wildcard ../shared/data/agentopt),)
export SCOPE_DATA_DIR ?= $(abspath ../shared/data)
endif
TASK ?= airport_city

.PHONY: run test packages test-slow test-long test-minimal lint format types bench results notebooks docs clean

run: $(VENV)/installed
	$(BIN)/python scripts/run.py -m task=$(TASK) seed=0,1,2
	$(BIN)/python scripts/report.py outputs/$(TASK)

# One thread for each worker: the tests are small, and threads of two workers slow each other down.
test test-slow: export OMP_NUM_THREADS = 1
# Compiled tests are kept: rewriting their asserts is half of what collecting them takes.
test test-slow: export PYTHONDONTWRITEBYTECODE =

# A worker keeps the tests of a file, and what they share, until another one has nothing to do.
test: lint types
	$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist worksteal --durations=10

# Agent frameworks, and another client: apart, so that they decide no dependency of the others. Where
# they cannot be had, their tests are skipped.
test-slow test-long: export SCOPE_AGENTS = $(abspath build/agents)
test-slow test-long: export SCOPE_OPENAI2 = $(abspath build/openai2)
test-slow test-long: export SCOPE_RAY = $(abspath build/ray)
test-slow test-long: export SCOPE_DASK = $(abspath build/dask)
test-slow test-long: export SCOPE_MPI = $(abspath build/mpi)
test-slow test-long: export SCOPE_PEERS = $(abspath build/peers)

packages: build/agents build/ray build/dask build/mpi build/peers

test-slow: $(VENV)/installed packages
	$(BIN)/pip install -q -e ".[docs,bench]"
	$(BIN)/python -m pytest -m slow -n $(WORKERS) --dist worksteal --durations=10

build/agents: $(VENV)/installed constraints/agents.txt
	-$(BIN)/pip install -q --upgrade --target build/openai2 "openai<3"
	-$(BIN)/pip install -q --upgrade --target build/agents -r constraints/agents.txt

# Its launcher needs an older cloudpickle than joblib does.
build/ray: $(VENV)/installed constraints/ray.txt
	-$(BIN)/pip install -q --upgrade --target $@ -r constraints/ray.txt

build/dask: $(VENV)/installed constraints/dask.txt
	-$(BIN)/pip install -q --upgrade --target $@ -r constraints/dask.txt

# With its own prefix, because the library of MPI lies beside the packages.
build/mpi: $(VENV)/installed constraints/mpi.txt
	-$(BIN)/pip install -q --ignore-installed --prefix $(abspath $@) -r constraints/mpi.txt

# SMAC3 and Ax, apart and without what they have in common with this project.
build/peers: $(VENV)/installed constraints/peers.txt
	-$(BIN)/pip install -q --no-deps --upgrade --target $@ -r constraints/peers.txt

# The counts of docs/reliability.md, and of the simulations in docs/explanation.
LONG = tests/reliability tests/llm tests/serve tests/traces tests/guarantees \
  $(shell grep -lr --include="test_*.py" long_runs tests)
test-long: export OMP_NUM_THREADS = 1
test-long: export SCOPE_LONG = 1
test-long: $(VENV)/installed packages
	$(BIN)/python -m pytest -m slow $(LONG) -n $(WORKERS) --dist worksteal --durations=10

# The lower bounds of pyproject.toml. Old releases warn about new ones of their dependencies.
test-minimal: export OMP_NUM_THREADS = 1
test-minimal: $(VENV)-minimal/installed
	$(VENV)-minimal/bin/python -m pytest -m "not slow" -n $(WORKERS) -W default

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/installed
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(VENV)/installed
	$(BIN)/pip install -q -e ".[bench]"
	$(BIN)/python -m pytest benchmarks

# Every table and figure of the results pages: a day on two cores; goes on where it was stopped.
# `make results QUICK=1`: minutes, a few small runs into build/results, compared with docs/results.
results: export OMP_NUM_THREADS = 1
results: export PYTHONPATH = $(abspath build/peers)
results: $(VENV)/installed build/peers
	$(BIN)/pip install -q -e ".[peers,bench]"
	$(BIN)/python -m benchmarks.results all --jobs $(WORKERS) $(if $(QUICK),--quick)
ifndef QUICK
	$(BIN)/python -m benchmarks.agentopt all
	$(BIN)/python scripts/continued.py all
	$(BIN)/python scripts/speed.py measure
	$(BIN)/python scripts/speed.py write
endif

# Executed notebooks, in build/notebooks.
notebooks: $(VENV)/installed
	$(BIN)/pip install -q -e ".[docs]"
	mkdir -p build/notebooks
	for n in notebooks/*.py; do \
	  $(BIN)/jupytext -q --to ipynb --execute --set-kernel python3 --output build/$${n%.py}.ipynb $$n \
	    || exit 1; \
	done

# The site, in site/; a link that leads nowhere is an error.
docs: export NO_MKDOCS_2_WARNING = 1
docs: notebooks
	$(BIN)/mkdocs build

# The CPU build of torch comes from the configured index or, if that has none, from PyTorch's.
$(VENV)/installed: pyproject.toml constraints/cpu.txt
	$(PYTHON) -m venv $(VENV)
ifeq ($(TORCH),cpu)
	$(BIN)/pip install -q -r constraints/cpu.txt || \
	  $(BIN)/pip install -q --index-url https://download.pytorch.org/whl/cpu -r constraints/cpu.txt
	$(BIN)/pip install -q -c constraints/cpu.txt -e ".[dev]"
else
	$(BIN)/pip install -q -e ".[dev]"
endif
	touch $@

# If there is no CPU build of that torch, pip takes the one with CUDA libraries (5 GB).
$(VENV)-minimal/installed: pyproject.toml constraints/minimal.txt
	$(PYTHON) -m venv $(VENV)-minimal
	$(VENV)-minimal/bin/pip install -q --index-url https://download.pytorch.org/whl/cpu \
	  `grep ^torch== constraints/minimal.txt` || true
	$(VENV)-minimal/bin/pip install -q -c constraints/minimal.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-minimal outputs build site
