# Two commands do everything on a fresh machine: `make demo` and `make test`.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
# A folder of its own for every demo: a run never overwrites another.
DEMO   := outputs/demo/$(shell date +%Y-%m-%d_%H-%M-%S)
# Where `make comparison` and `make design` put their runs; the same folder again goes on where it was.
COMPARISON ?= outputs/study/comparison
DESIGN     ?= outputs/study/design
WHEEL  := build/wheel
# One thread per process: pytest runs one process per core.
TEST_ENV := OMP_NUM_THREADS=1 WANDB_MODE=offline

.PHONY: demo models page comparison design benchmarks test nightly wheel lint format clean

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

demo: $(VENV)/.core  ## set up, calibrate the embedded recordings by a shipped model (page.html), then train one and evaluate it
	$(BIN)/asbc calibrate data=synthetic output=$(DEMO)/calibration
	$(BIN)/asbc train experiment=quick threads=2 hydra.run.dir=$(DEMO)/run
	$(BIN)/asbc evaluate run=$(DEMO)/run threads=2

models: $(VENV)/.dev  ## train the models inside the package again, bit for bit on the same machine
	$(BIN)/asbc models make=all
	$(BIN)/asbc models publish=docs/models.md
	$(MAKE) page

page: $(VENV)/.dev  ## the page of the default model in docs/, and its pictures where there is a Chromium
	$(BIN)/asbc page output=docs/page.html
	ASBC_SCREENSHOTS=docs/figures $(TEST_ENV) $(BIN)/python -m pytest -q tests/page/test_screenshots.py

comparison: $(VENV)/.dev  ## both ASBC variants and every baseline on the pairs file DATA=FILE
	@test -n "$(DATA)" || { echo "usage: make comparison DATA=FILE"; exit 2; }
	$(BIN)/asbc study study=comparison output=$(COMPARISON) \
		"overrides=['data=pairs','data.path=$(abspath $(DATA))']"

design: $(VENV)/.dev  ## does active design pay? Budgets and ways to spend them on DATA=FILE
	@test -n "$(DATA)" || { echo "usage: make design DATA=FILE"; exit 2; }
	for residual in gaussian matern; do \
		$(BIN)/asbc study study=design output=$(DESIGN)/$$residual \
			"overrides=['data=pairs','data.path=$(abspath $(DATA))','residual=$$residual']" || exit 1; \
	done
	$(BIN)/asbc report "runs=$(DESIGN)/*/*/seed*" design=true output=$(DESIGN)/report exact=$(DESIGN)/exact

benchmarks: $(VENV)/.dev  ## what the parts cost, each against a peer: docs/benchmarks.md; RUN=FOLDER and DATA=FILE.parquet for those that use a run and drivers
	for name in simulator sumo encoder sampler evaluation calibration live training history segments page; do \
		$(BIN)/python benchmarks/bench_$$name.py --publish || exit 1; \
	done
	$(BIN)/python benchmarks/bench_scale.py --publish $(if $(RUN),--run $(RUN)) $(if $(DATA),--pairs $(DATA))
	$(BIN)/python benchmarks/bench_alarms.py --publish $(if $(DATA),--pairs $(DATA))
	$(BIN)/python benchmarks/bench_readers.py --publish $(if $(DATA),--pairs $(DATA))
	$(BIN)/python benchmarks/bench_refinement.py --publish $(if $(RUN),--run $(RUN))
	@if $(BIN)/python -c "import sbi" 2>/dev/null; then \
		$(BIN)/python benchmarks/bench_sbi.py --publish && \
		$(BIN)/python benchmarks/bench_exact_posterior.py --publish; \
	else echo "left out, for want of sbi (pip install -e '.[benchmarks]'): bench_sbi, bench_exact_posterior"; fi

test: $(VENV)/.dev  ## set up and run the default tests
	$(TEST_ENV) $(BIN)/python -m pytest -n auto -m "not slow"

wheel: $(VENV)/.dev  ## build a wheel, and use it in an environment and a folder that hold nothing else
	rm -rf $(WHEEL) && mkdir -p $(WHEEL)/folder
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir $(WHEEL) .
	$(PYTHON) -m venv $(WHEEL)/env
	$(WHEEL)/env/bin/python -m pip install --quiet $(WHEEL)/asbc-*.whl
	cd $(WHEEL)/folder && export OMP_NUM_THREADS=1 ASBC=../env/bin/asbc && \
		$$ASBC models && \
		$$ASBC calibrate data=synthetic calibration.samples=50 output=shipped && \
		test -s shipped/draws.parquet && test -s shipped/drivers.add.xml && \
		$$ASBC page output=page.html && test -s page.html && \
		$$ASBC train experiment=smoke hydra.run.dir=run && \
		$$ASBC evaluate run=run evaluation=fast && \
		$$ASBC calibrate run=run calibration.samples=50 output=calibrated && \
		test -s run/evaluation/report.html && test -s calibrated/draws.parquet
	rm -rf $(WHEEL)/env

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
