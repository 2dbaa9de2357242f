# make demo    fresh clone to a trained, drawn and evaluated tree
# make test    lint, types, tests; README and tutorial
# make test-all  the same with the slow tests (every page's examples, the notebooks), hostile and kills
# make hostile all attacks of tests/hostile: command lines, damaged files, mutated trees, misbehaving environments
# make kills   kill -9 at random moments for every method, and what resuming gives
# make fuzz    coverage-guided fuzzing of what reads files, until Ctrl-C (needs atheris, which has no wheel everywhere)
# make audit   known vulnerabilities of what is installed (needs a network)
# make types   a user's script under mypy and pyright
# make docs    the documentation as a site in build/site; warnings are errors, links are checked
# make package sdist and wheel in dist, checked and used in a clean environment
# make bench   speed, printed as ratios
# make setup   the virtual environment alone
# make clean   forget what was set up

PYTHON ?= python3.11
PYTHON_FOUND := $(shell command -v $(PYTHON) 2>/dev/null || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
JOBS   ?= 2
DOCS_EXTRAS := neural,docs
EXTRAS := neural,box2d,sb3,verify,storm,onnx,ray,tensorboard,dev

# $(call aloud,WHAT,COMMAND): run a command that says nothing; say what is at work, at once and every three seconds.
define aloud
echo "  $(1) …"; ( $(2) ) & job=$$!; seconds=0; trap "kill $$job 2>/dev/null" INT TERM; \
while sleep 1 && kill -0 $$job 2>/dev/null; do \
  seconds=$$((seconds + 1)); [ $$((seconds % 3)) -ne 0 ] || echo "  $(1): $$seconds s"; \
done; wait $$job
endef

.PHONY: setup demo lint types test test-all hostile kills fuzz audit docs package bench clean browser

setup: $(VENV)/ready

$(VENV)/base: pyproject.toml
	@echo "setting up $(VENV) (one to three minutes: packages are downloaded) …"
	@test -x $(BIN)/python || { $(call aloud,virtual environment,$(PYTHON_FOUND) -m venv $(VENV)); }
	@$(call aloud,upgrading pip,$(PIP) install --upgrade pip)
	@$(call aloud,custard and what it needs,$(PIP) install --editable ".[verify]")
	@rm -rf $(VENV)/first
	@$(call aloud,compiling (once: about 20 s),$(BIN)/custard train CartPole-v1 --episodes 10 --out $(VENV)/first >/dev/null 2>&1)
	@touch $@

# torch first and pinned: an open range would pull gigabytes of accelerator packages.
$(VENV)/ready: $(VENV)/base
	@echo "installing what the tests need (a few minutes) …"
	@$(call aloud,torch,$(PIP) install torch==2.13.0)
	@$(call aloud,extras,$(PIP) install --editable ".[$(EXTRAS)]")
	@touch $@

$(VENV)/docs: $(VENV)/base
	@echo "installing what the site needs …"
	@$(call aloud,tools for the site,$(PIP) install --editable ".[$(DOCS_EXTRAS)]")
	@touch $@

demo: $(VENV)/base
	@rm -rf runs/demo
	$(BIN)/custard train CartPole-v1 --max-depth 2 --seed 0 --out runs/demo
	$(BIN)/custard evaluate runs/demo --episodes 1000
	@echo "open runs/demo/report.html in a browser"

# The report's tests drive Debian's chromium; where it cannot be installed they are skipped and say so.
browser:
	@command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 && echo "installing chromium …" && \
	    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; } || \
	  echo "chromium is missing and cannot be installed here: the browser tests will be skipped"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

types: setup
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

test: lint browser
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

hostile: setup
	$(BIN)/python -m tests.hostile

kills: setup
	$(BIN)/python -m tests.hostile.kills --kills 20

fuzz: setup
	@$(PIP) install atheris
	$(BIN)/python -m tests.hostile.fuzz

audit: setup
	@$(PIP) install pip-audit
	$(BIN)/pip-audit --skip-editable

test-all: lint browser
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m ""
	$(MAKE) hostile kills

docs: $(VENV)/docs
	@rm -rf build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python docs/scripts/check_links.py build/site

package: setup
	@rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tests/package/clean_install.py dist/*.whl

bench: setup
	@for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
