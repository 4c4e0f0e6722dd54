# `make demo` and `make test` need Python 3.10 or later and make; everything else they install.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := demo

.PHONY: demo test quick test-narrow test-one-core mobile-compilers mobile-kernels lint docs links paper clean

# The environment: codl in editable form with its tools.
$(READY): pyproject.toml
	$(PYTHON) scripts/bootstrap.py $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all]' --group dev
	touch $@

# detect -> collect -> train -> search -> eval for YOLOv2 on this machine; results in demo/.
demo: $(READY)
	PATH="$(abspath $(BIN)):$$PATH" scripts/demo.sh $(DEMO)

# In three processes on two cores: most of the time goes to drivers that compile kernels, on one core
# each, and a fifth of it to waiting for other processes.
test: lint
	scripts/test_packages.sh
	$(BIN)/python -m pytest --numprocesses 3 --dist worksteal

# What needs no device: no driver is opened.
quick: $(READY)
	$(BIN)/python -m pytest -m "not device" --numprocesses 2 --dist worksteal

# All tests as on a CPU without AVX-512: NumPy and its BLAS take the paths of one with AVX2.
AVX512 := AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL
test-narrow: $(READY)
	NPY_DISABLE_CPU_FEATURES="$(AVX512)" OPENBLAS_CORETYPE=Haswell $(BIN)/python -m pytest \
		--numprocesses 2 --dist worksteal

# All tests as on a machine with one core; those with a device that is a CPU too are skipped there.
test-one-core: $(READY)
	taskset --cpu-list 0 $(BIN)/python -m pytest

# The compilers of phones' GPUs, from Debian's packages: Adrenos' in seconds, Malis' in minutes.
mobile-compilers: $(READY)
	$(BIN)/codl kernels --setup --mali

# What they make of every kernel of the default choices; PHONE_GPUS says for which GPUs.
PHONE_GPUS ?= adreno630 adreno660 adreno730 malig76 malig57
mobile-kernels: $(READY)
	for gpu in $(PHONE_GPUS); do \
		$(BIN)/codl kernels --for $$gpu --brief -o docs/results/kernels-$$gpu.json || exit 1; \
	done

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Tables, lists and references in README.md and docs/, from docs/results and the code; then the site.
docs: $(READY)
	$(BIN)/python scripts/render_docs.py
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/site
	@echo "build/site/index.html"

# Links that lead out of the pages, each asked for once: for a schedule, since others' pages move.
links: $(READY)
	$(BIN)/python -m sphinx --builder linkcheck --quiet docs $(VENV)/links

# docs/paper.md with its pictures, from docs/results/paper-*.json; scripts/paper/*.py make those.
paper: $(READY)
	$(BIN)/python scripts/render_docs.py

clean:
	rm -rf $(VENV) $(DEMO) build
