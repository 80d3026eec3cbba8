# Every target sets up all that it needs: a virtual environment in .venv with the tested versions.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-slow test-all test-avx2 bench results docs site tutorials lint format clean

demo: $(VENV)/.ready
	$(BIN)/spacecl demo

# Everything that takes under five minutes on two cores; test-slow has kill sweeps, Ray, browser, benchmarks and long training.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m "not slow"

test-slow: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m slow

test-all: test test-slow

# All model families once more as on CPUs without AVX-512, whose kernels are others.
test-avx2: $(VENV)/.ready
	OMP_NUM_THREADS=1 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 $(BIN)/pytest -n 2 \
		-m "not slow" tests/methods/test_methods.py tests/test_learner.py tests/test_speed.py tests/test_bad_input.py

bench: $(VENV)/.ready
	$(BIN)/python bench

# What results/plan.toml lists and results/ does not have yet: some forty hours of one core. It can be stopped and resumed.
results: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/python results/run.py

# Pages that are made from the code.
docs: $(VENV)/.ready
	for script in docs/generate/*.py; do $(BIN)/python $$script; done

# The documentation as a site, in build/site. It loads nothing from other hosts.
site: $(VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Execute the notebooks and save what they print.
tutorials: $(VENV)/.ready
	$(BIN)/python docs/site/notebooks.py

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build src/*.egg-info
