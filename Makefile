# Two commands do everything, set-up included: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
LOCKED_TORCH := torch==2.13.0
TORCH ?= $(LOCKED_TORCH)
# The versions of constraints.txt belong to that torch. Another one may need others: then pip chooses.
CONSTRAINTS ?= $(if $(filter $(LOCKED_TORCH),$(TORCH)),constraints.txt)
INSTALL = $(BIN)/python -m pip install --quiet --no-compile $(addprefix --constraint ,$(CONSTRAINTS))
BIN := $(VENV)/bin
# Tests start hundreds of processes. Each would compile gemmdb and the tests again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow check docs site matrix packages programs lock release clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed  ## record a model's GEMMs, build a table for this CPU, compile against it, compare
	$(BIN)/gemmdb demo --folder .demo

test: $(VENV)/.installed  ## the tests, divided among the cores, then those with a time limit one by one; ARGS are pytest's
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'not timed and not slow' $(ARGS)
	$(BIN)/python -m pytest -m 'timed and not slow' $(ARGS) || [ $$? -eq 5 ]  # 5: ARGS choose none

test-slow: $(VENV)/.installed  ## end-to-end tests: builds, searches, trials, jobs, examples, and after `make packages` all programs
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow $(ARGS)

check: site  ## style, types, layers, and the site
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p gemmdb -p benchmarks -p tools -p kit
	$(BIN)/lint-imports

docs: $(VENV)/.installed  ## the generated CLI reference, the pictures of the layers and the diagrams
	$(BIN)/python -m gemmdb.cli.reference > docs/cli.md
	$(BIN)/python -m tools.layers docs
	$(BIN)/python -m tools.diagrams docs/images

site: $(VENV)/.installed  ## the documentation as a site, in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# torch first: whatever depends on it must find this build and not fetch another.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'gemmdb needs Python 3.11 or newer; set PYTHON=python3.x'; exit 2; }
	@command -v $${CXX:-g++} >/dev/null || { echo 'torch.compile needs a C++ compiler on a CPU; install g++'; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) "$(TORCH)"
	$(INSTALL) -e '.[dev]'
# Importing torch makes so many objects that collections of garbage take an eighth of the time: the processes of this
# environment, hundreds of which the tests start, collect less often.
	@echo 'import gc; gc.set_threshold(50_000, 50, 100)' > \
		"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/fewer-collections.pth"
	@$(BIN)/python -W ignore -c 'import torch._inductor.select_algorithm, torch.export' || true  # compiles what every process imports, once
	@touch $@

matrix: $(VENV)/.installed  ## the integration on every supported torch that can be installed
	$(BIN)/python -m benchmarks.torch matrix

packages: $(VENV)/.installed  ## installs what benchmarks/programs and how-to pages need
	$(INSTALL) --no-build-isolation "$(TORCH)" -e '.[programs]'

programs: packages  ## tiny versions of benchmarks/programs, and what how-to pages show, on this CPU
	$(BIN)/python -m pytest -n auto --dist worksteal tests/benchmarks/test_programs_all.py \
		tests/site/test_howto_packages.py $(ARGS)

lock: $(VENV)/.installed  ## resolves what CI installs again: constraints.txt
	$(BIN)/python -m tools.release lock

release: $(VENV)/.installed  ## what is uploaded of COMMIT in dist, built twice, compared and installed; its bill of materials in sbom
	rm -rf dist sbom
	$(BIN)/python -m tools.release build $(COMMIT) --check $(if $(REPOSITORY),--repository $(REPOSITORY))
	$(BIN)/python -m tools.release rehearse --demo
	$(BIN)/python -m tools.release sbom dist/*.whl

clean:
	rm -rf $(VENV) .demo .matrix build dist sbom gemmdb.egg-info
