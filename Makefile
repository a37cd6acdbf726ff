# Every target does its own set-up: `make test` and `make demo` work in a fresh clone with nothing but Python >= 3.10.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt

# Two stamps: of the library alone, which translates, and of all that the tests and other targets need.
LIBRARY = $(VENV)/.library
SETUP = $(VENV)/.installed
PIP = $(VENV)/bin/python -m pip install --constraint $(CONSTRAINTS)

# Nothing after the installation needs a network; the libraries of Hugging Face are told so.
export HF_HUB_OFFLINE = 1
export HF_DATASETS_OFFLINE = 1
export HF_EVALUATE_OFFLINE = 1
export TOKENIZERS_PARALLELISM = false
# Threads sleep while they wait for each other: where other programs run, spinning ones make a step ten times as long.
export OMP_WAIT_POLICY = PASSIVE

# TEXT reaches the demo through the environment, untouched by make and by the shell: quotes, $ and ; are only characters.
ifneq ($(origin TEXT),undefined)
override TEXT := $(value TEXT)
export TEXT
endif
TEXT_OPTION = $${TEXT+--text="$$TEXT"}

.DEFAULT_GOAL := help
.PHONY: help setup style quality pytest test test-native test-slow test-oldest test-newest demo translate app docs notebooks wheel clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

# A stamp is written last, so an interrupted installation goes on at the next call. torch goes first and alone: the
# constraints then hold whichever build of it pip chose here (a CPU wheel, where there is one). Meanwhile the C files are
# compiled for this CPU; the installation takes the result, and that of the tests compiles them for all others. Python
# makes bytecode when it first imports a module.
$(LIBRARY): export RELUFORMERS_BUILD = native
$(LIBRARY): setup.py $(wildcard native/*.[ch]) $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "error: $(PYTHON) is not Python 3.10 or newer; name one: make PYTHON=python3.11 …" >&2; exit 2; }
	@echo "Setting up $(VENV): torch, transformers and compiled attention (minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --quiet 'setuptools>=77'
	@$(VENV)/bin/python setup.py --quiet build_ext --inplace & $(PIP) --no-compile torch; status=$$?; wait; exit $$status
	@$(PIP) --no-compile --no-build-isolation --editable .
	@touch $@

$(SETUP): $(LIBRARY)
	@echo "Installing what tests, training and the app need"
	@$(PIP) --no-build-isolation --editable '.[test]' --editable ./research
	@touch $@

setup: $(SETUP)  ## make the environment and do nothing in it

style: $(SETUP)  ## mend and format the code, and copy it into models/
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/python scripts/refresh_models.py

quality: $(SETUP)  ## lint and format, read only
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/python scripts/lint_payload.py

# Two processes of one thread each: the models of the tests are too small to share one. The `pytest` command, not
# `python -m pytest`: the latter would put the repository's folders on the import path.
MARKERS = not slow and not gpu
pytest: $(SETUP)
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(VENV)/bin/pytest -n 2 --dist loadgroup -m '$(MARKERS)' $(TESTS)

test: quality pytest  ## lint and the test suite, offline

# `make pytest` takes the instruction set that the CPU runs fastest. Older CPUs have one of these.
NATIVE = avx2 generic
test-native: $(SETUP)  ## the tests that call compiled code, with the instruction sets of older CPUs
	@used=$$($(VENV)/bin/python -c 'import reluformers_native as n; print(n.instruction_set())'); \
	for name in $(NATIVE); do \
		[ $$name = $$used ] || RELUFORMERS_NATIVE=$$name $(MAKE) pytest TESTS='tests/modeling tests/translation' || exit; \
	done

test-slow: MARKERS = slow and not gpu
test-slow: pytest  ## the tests left out of `make test`

test-oldest:  ## the test suite on the oldest supported versions
	$(MAKE) pytest VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt

test-newest:  ## the test suite on the newest release of every package
	$(MAKE) pytest VENV=.venv-newest CONSTRAINTS=constraints-newest.txt

demo: $(SETUP)  ## train two small models from nothing, score and save them, and translate TEXT with one
	@$(VENV)/bin/python scripts/demo.py $(TEXT_OPTION)

translate: $(LIBRARY)  ## translate TEXT with MODEL, a folder, else models/tatoeba-en-de
	@$(VENV)/bin/python -m reluformers translate $${MODEL:+--model "$$MODEL"} -- "$${TEXT-I don't know where he lives.}"

# A model of the Hub is downloaded, so here the network is allowed. The file is run as a Space runs it: nothing is
# imported before it says what it loads.
app: export HF_HUB_OFFLINE = 0
app: $(SETUP)  ## open MODEL, a folder or a Hub id, else those of models/, on a page that shows its attention
	@$(VENV)/bin/python app/app.py $${MODEL:+"$$MODEL"}

docs: $(SETUP)  ## build the documentation site into site/
	@rm -rf build research/build
	@$(VENV)/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[docs]'
	@$(VENV)/bin/python -m pip install --quiet --no-deps --target build/documented . ./research
	$(VENV)/bin/python -m mkdocs build --strict
	$(VENV)/bin/reluformers export models/tatoeba-en-de models/digits-relu-vit --to page --output site/try

notebooks: $(SETUP)  ## execute docs/notebooks, and keep what they print
	$(VENV)/bin/python scripts/notebooks.py docs/notebooks/*.ipynb

wheel: $(LIBRARY)  ## build the wheel into dist/
	@rm -rf build  # what an earlier build left there would go in
	$(VENV)/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean:  ## remove environments, caches and builds; leaves runs/ alone
	rm -rf .venv .venv-oldest .venv-newest build research/build dist site *.egg-info research/*.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
