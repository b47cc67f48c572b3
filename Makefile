# Two commands do everything on a fresh machine: `make demo` and `make test`.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
# A folder of its own for every demo: a run never overwrites another.
DEMO   := outputs/demo/$(shell date +%Y-%m-%d_%H-%M-%S)
# Where `make comparison` puts its runs; the same folder again goes on where it was.
COMPARISON ?= outputs/comparison
DESIGN ?= outputs/design
# One thread per process: pytest runs one process per core.
TEST_ENV := OMP_NUM_THREADS=1 WANDB_MODE=offline

.PHONY: demo comparison design test nightly lint format clean

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

comparison: $(VENV)/.dev  ## both ASBC variants and every baseline on the pairs file DATA=FILE
	@test -n "$(DATA)" || { echo "usage: make comparison DATA=FILE"; exit 2; }
	$(BIN)/python study.py --config-name comparison output=$(COMPARISON) \
		"overrides=['data=pairs','data.path=$(abspath $(DATA))']"
	$(BIN)/python scripts/comparison.py $(COMPARISON)

design: $(VENV)/.dev  ## does active design pay? Budgets and ways to spend them on DATA=FILE
	@test -n "$(DATA)" || { echo "usage: make design DATA=FILE"; exit 2; }
	for scale in design_small design_large; do \
		$(BIN)/python study.py --config-name design scale=$$scale output=$(DESIGN) \
			"overrides=['data=pairs','data.path=$(abspath $(DATA))']" || exit 1; \
	done
	$(BIN)/python scripts/design_study.py $(DESIGN)

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
