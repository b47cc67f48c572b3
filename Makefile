# Two commands do everything on a fresh machine: `make demo` and `make test`.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
# A folder of its own for every demo: a run never overwrites another.
DEMO   := outputs/demo/$(shell date +%Y-%m-%d_%H-%M-%S)
# One thread per process: pytest runs one process per core.
TEST_ENV := OMP_NUM_THREADS=1 WANDB_MODE=offline

.PHONY: demo test nightly lint format clean

$(VENV)/.core: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e .
	touch $@

$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $(VENV)/.core $@

demo: $(VENV)/.core  ## set up, train on the embedded data, evaluate, say where the report is
	$(BIN)/python train.py experiment=quick threads=2 hydra.run.dir=$(DEMO)
	$(BIN)/python evaluate.py run=$(DEMO) threads=2

test: $(VENV)/.dev  ## set up and run the default tests
	$(TEST_ENV) $(BIN)/python -m pytest -n auto -m "not slow"

nightly: $(VENV)/.dev  ## everything, the slow statistical tests included
	$(TEST_ENV) $(BIN)/python -m pytest -n auto

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV)
