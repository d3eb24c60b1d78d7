# Everything that a person or CI runs. All of it happens in $(VENV); nothing is installed outside it, but for WordNet's
# data, which is fetched into the user's cache when the machine has none.

PYTHON ?= python3
VENV ?= .venv
# cpu or gpu: which build of faiss (docs/install.md).
FAISS ?= cpu
PYTEST_ARGS ?=
ZOO_ARGS ?=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed-$(FAISS)
WORDNET := $(VENV)/.wordnet

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo docs test lint types imports pytest fuzz test-faults wheel zoo train-zoo clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup: $(INSTALLED) $(WORDNET) ## Install everything into .venv, with pinned versions, and find or fetch WordNet

demo: setup ## Evaluate the released checkpoints on WordNet, train a small one, write a report
	$(BIN)/python -m benchmarks.wordnet.demo

test: lint types imports pytest ## All checks: lint, types, import rules, tests

lint: $(INSTALLED) ## Check style and format (ruff)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(INSTALLED) ## Check types (mypy, strict)
	$(BIN)/mypy

imports: $(INSTALLED) ## Check that imports run one way (import-linter)
	$(BIN)/lint-imports

# One thread for each process, and for those that they start, whose sums must be the same to the last bit.
pytest: setup ## Run the tests in two processes; PYTEST_ARGS="-k name" passes arguments on
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal $(PYTEST_ARGS)

fuzz: setup ## Harm files at random for some minutes and load them
	SIMZOO_FUZZ=400 $(BIN)/python -m pytest -q tests/test_fuzz.py tests/test_fuzz_readers.py

# SIMZOO_SEED=n repeats a run: a test that fails names the seed.
test-faults: setup ## Kill long work a hundred times, fill disks, write twice; at most 15 minutes
	SIMZOO_FAULTS=100 $(BIN)/python -m pytest -q -s tests/faults $(PYTEST_ARGS)

docs: setup ## The documents and an API reference as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

wheel: setup ## Build sdist and wheel, install the wheel into a fresh environment, run README's lines there
	SIMZOO_WHEEL=1 $(BIN)/python -m pytest -q tests/test_wheel.py

zoo: setup ## Evaluate every released checkpoint on every data set at hand; write docs/zoo.md and docs/zoo.html
	$(BIN)/python -m benchmarks.zoo.measure

train-zoo: setup ## Train every released checkpoint, resumably; ZOO_ARGS="--plan" says what it takes, "--help" what else
	$(BIN)/python -m benchmarks.zoo.train $(ZOO_ARGS)

clean: ## Remove .venv, caches and out/
	rm -rf $(VENV) out build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A change of pyproject.toml or of the constraints installs anew; so does a change of FAISS, into an empty environment,
# because faiss-cpu and faiss-gpu own the same files. The stamp is written last, so a broken installation is repeated.
$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "error: $(PYTHON) was not found; install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Python 3.11 or newer is needed, but \
	$(PYTHON) is %d.%d; name a newer one: make PYTHON=python3.11" % sys.version_info[:2])'
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	  echo "error: $(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@if ls $(VENV)/.installed-* >/dev/null 2>&1 && ! [ -e $@ ]; then rm -rf $(VENV); fi
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e ".[$(FAISS),dev]"
	@touch $@

$(WORDNET): | $(INSTALLED)
	@$(BIN)/python -c 'from simzoo.datamodules.readers.wordnet_files import find_wordnet; print("WordNet: found in", find_wordnet())' \
	  2>/dev/null || $(BIN)/python -m simzoo.datamodules.readers.wordnet fetch
	@touch $@
