# One target per chore. Each one makes the virtual environment that it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start hundreds of processes. Without bytecode files, each of them would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all ci steady mutants slow-tests ray-tests coverage cluster-tests gpu gpu-bench gpu-pending lint format bench papers chaos cluster docs site package release oldest clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.base:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Hopfleet needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	@# The pip that comes with Python 3.11 takes minutes of processor time to choose among wheels.
	-@$(BIN)/pip install --quiet --upgrade pip
	@touch $@

# Most modules of the packages are never imported, so they are compiled when one first is.
INSTALL := $(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable

$(VENV)/.demo: $(VENV)/.base pyproject.toml constraints.txt
	$(INSTALL) '.[demo]'
	@touch $@

$(VENV)/.installed: $(VENV)/.base pyproject.toml constraints.txt
	$(INSTALL) '.[cluster,site]'
	@touch $@ $(VENV)/.demo

$(VENV)/.dev: $(VENV)/.installed
	@# Compile the packages and the tests once, which otherwise each process of pytest would do.
	@$(BIN)/python -m pytest --collect-only -qq -m 'not slow' > /dev/null || true
	@touch $@

demo: $(VENV)/.demo  ## a real model selection on real data, in about half a minute
	$(BIN)/hopfleet demo

# Processes of pytest, for two cores; threads of their own would only be in their way.
JOBS ?= 2
# Temporary files of tests are in memory where it has room: each journal syncs each entry, for which tests would wait.
MEMORY := $(shell test "$$(df --output=avail /dev/shm 2>/dev/null | tail -1)" -gt 4000000 2>/dev/null && echo /dev/shm)
PYTEST := OMP_NUM_THREADS=1 $(if $(MEMORY),PYTEST_DEBUG_TEMPROOT=$(MEMORY)) $(BIN)/python -m pytest --durations=10
# Tests of other frameworks are slow ones. All tests of one of them run in one process, which imports that one alone.
ADAPTERS := keras jax lightning transformers
RUN = $(PYTEST) --numprocesses=$(JOBS) --dist=worksteal \
	$(foreach name,$(ADAPTERS),--ignore-glob='*/frameworks/test_$(name)*.py')

test: $(VENV)/.dev  ## what every change must pass, in 5 minutes on 2 cores
	$(RUN) -m 'not slow'

REPEAT ?= 10
WHAT ?= test

steady: $(VENV)/.dev  ## make test, REPEAT=10 times in random order on busy cores, and what failed; or WHAT=slow-tests
	$(BIN)/python tools/steady.py --repeat $(REPEAT) $(if $(SEED),--seed $(SEED)) $(MAKE) --no-print-directory $(WHAT)

test-all: ci oldest  ## make lint, make test, and what takes longer: clusters, notebooks, 1,000 simulated seeds, coverage

ci: $(VENV)/.installed  # what .ci/run runs: all of test-all but old packages
	$(MAKE) --jobs=2 --output-sync=target lint test
	@# Five processes at a time: three of the slow tests, which are the longest, and those of clusters wait for much of
	@# their time.
	$(MAKE) JOBS=3 --jobs=3 --output-sync=target slow-tests ray-tests $(addprefix adapter-,$(ADAPTERS)) coverage package

# Tests that need a Ray cluster run in one process, where they share it. Some hosts have a /dev/shm of their own.
RAY_TESTS := $(wildcard tests/backends/test_ray*.py tests/data/etl/test_ray*.py)

slow-tests: $(VENV)/.dev
	$(RUN) $(addprefix --ignore=,$(RAY_TESTS)) -m 'slow and not adapter'

ray-tests: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --durations=10 -m slow $(RAY_TESTS)

adapter-%: $(VENV)/.dev
	HOPFLEET_TESTS_APART=$* $(PYTEST) -m slow -k $* $(wildcard tests/frameworks/test_$**.py) \
	  tests/frameworks/test_framework_table.py tests/system/test_docs.py tests/system/test_examples.py

PURE := controller domain planner scheduler search
EMPTY :=
SPACE := $(EMPTY) $(EMPTY)
COMMA := ,
# Tests that take long under coverage and reach no line that others leave out; make test runs them.
UNCOVERED := every_mode_goes_through_all_epochs or auto_ends_no_later_than_either or the_plan_is_carried_on \
	or values_of_any_depth_and_size or auto_is_no_worse_than_random or test_the_speed_of_workers_changes_nothing \
	or no_worker_waits_for_trials or brackets_ or rules_are_put_around \
	or a_plan_has_each_unit_once or without_rounds_the_speed or no_plan_is_faster or repeated_allocations \
	or random_clusters_are_near or the_bound_scales or fast_plans_are_valid or partial_sums or long_circles \
	or heterogeneous_settings or with_a_fixed_concurrency or all_searches_end or near_the_bound or whatever_goes_wrong \
	or noise_makes_it_choose or whole_experiments or random_plans_are_valid

coverage: $(VENV)/.dev
	$(BIN)/coverage run --source='$(subst $(SPACE),$(COMMA),$(addprefix hopfleet.,$(PURE)))' \
	  -m pytest --hypothesis-profile=few -m 'not slow' -k 'not ($(UNCOVERED))' $(addprefix tests/,$(PURE))
	$(BIN)/coverage report --skip-covered --show-missing --fail-under=100

package: $(VENV)/.dev  ## build the distribution, install it for each Python at hand, and run it there
	$(BIN)/python -m tools.release package

oldest: $(VENV)/.dev  ## a part of the fast tests with the oldest packages that pyproject.toml allows
	$(BIN)/python -m tools.release.oldest

release: $(VENV)/.dev  ## everything up to the upload of a release: a clean tree, tests, the distribution, checksums
	$(BIN)/python -m tools.release release

# With pytest-xdist at hand, GPU_JOBS=6 processes share the GPU and take a third of the time.
gpu:  ## where PYTHON has a PyTorch for a GPU, and pytest: trials that train together have their bits; writes the record
	mkdir -p build
	PYTHONPATH=src:. $(PYTHON) -m pytest --junitxml=build/gpu.xml $(if $(GPU_JOBS),-p no:benchmark -n $(GPU_JOBS) --dist=loadfile) $(GPU_TESTS)
	$(PYTHON) tools/check_gpu_record.py --write build/gpu.xml

gpu-bench:  ## where PYTHON has a PyTorch for a GPU: how fast trials train together
	PYTHONPATH=src:. $(PYTHON) -m benchmarks.flotilla.device

REASON ?=

gpu-pending:  ## without a GPU: accept changed GPU code until the next make gpu, with REASON="..."
	@$(PYTHON) tools/check_gpu_record.py --pending '$(REASON)'

GPU_TESTS := $(addprefix tests/frameworks/test_,cuda_graphs.py capturable.py captured_updates.py direct_update.py interleaved.py stacked.py stacked_programs.py attention.py attention_kernel.py dropout.py session.py compat.py shared.py repeatable.py repeatable_kernels.py parallel_gpu.py jax_cuda.py cross_entropy.py norms.py embeddings.py kernels.py linear.py deferred.py unbinding.py unlike.py attempts.py frozen.py convolutions.py widths.py launching.py readying.py transformers_stacked.py transformers_flotillas.py joint_tensor.py joint_gradients.py step_log.py host_tensors.py conditions.py) \
	tests/system/test_bits.py tests/backends/test_ray_gpu.py tests/backends/test_inline_gpu.py

lint: $(VENV)/.installed  ## style, types, the direction of imports, and words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/check_prose.py
	$(BIN)/python tools/check_gpu_record.py
	$(BIN)/python tools/check_house.py

format: $(VENV)/.dev  ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev  ## measure the claims of docs/benchmarks.md again
	$(BIN)/python -m benchmarks

papers: $(VENV)/.dev  ## make the four papers' tables again into docs/papers; FULL=1: more seeds, and real runs
	$(BIN)/python -m benchmarks.papers $(if $(FULL),--full)

SEEDS ?= 1000000
FAULTS ?= 1000

chaos: $(VENV)/.dev  ## attack everything for long: SEEDS=1000000 simulated experiments, FAULTS=1000 in real processes
	$(BIN)/python -m tests.chaos --seeds $(SEEDS) --faults $(FAULTS)

PATHS ?=
TESTS ?=
SAMPLE ?=
SEED ?=

mutants: $(VENV)/.dev  ## bugs in functions that tests do not notice; PATHS="controller store/journal.py" SAMPLE=200 SEED=1
	$(BIN)/python -m tools.mutants $(PATHS) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(TESTS),--tests $(TESTS))

cluster-tests: $(VENV)/.dev  # clusters and other paradigms on this machine, with what takes minutes
	HOPFLEET_LONG=1 $(BIN)/python -m pytest -m slow tests/backends tests/data tests/system/test_paradigms.py

RATE ?= 200

cluster: $(VENV)/.dev  ## hopping beside other paradigms, on 4 hosts with links of RATE Mbit/s (root, Linux)
	$(BIN)/python -m benchmarks.paradigms --rate $(RATE)

docs: $(VENV)/.dev  ## run every snippet and command in README.md and docs/
	$(BIN)/pytest tests/system/test_docs.py

site: $(VENV)/.dev  ## the documentation as a site in build/site, with the output of the tutorials (Ray: on this machine)
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/site
	@echo "open build/site/index.html"

clean:  ## remove what the other targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* build src/*.egg-info
