# make demo    fresh clone to a trained, drawn and evaluated tree
# make test    lint, types, tests
# make hostile all attacks of tests/hostile: command lines, damaged files, mutated trees, misbehaving environments
# make kills   kill -9 at random moments for every method, and what resuming gives
# make fuzz    coverage-guided fuzzing of what reads files, until Ctrl-C (needs atheris, which has no wheel everywhere)
# make test-all test, hostile and kills
# make audit   known vulnerabilities of what is installed (needs a network)
# make bench   speed, printed as ratios
# make setup   the virtual environment alone
# make clean   forget what was set up

PYTHON ?= python3.11
PYTHON_FOUND := $(shell command -v $(PYTHON) 2>/dev/null || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
JOBS   ?= 2

.PHONY: setup demo test test-all hostile kills fuzz audit bench clean browser

setup: $(VENV)/ready

$(VENV)/base: pyproject.toml
	@echo "setting up $(VENV) (about a minute) …"
	@test -x $(BIN)/python || $(PYTHON_FOUND) -m venv $(VENV)
	@$(PIP) install --upgrade pip
	@$(PIP) install --editable .
	@echo "compiling, once …"
	@rm -rf $(VENV)/first && $(BIN)/custard train CartPole-v1 --episodes 10 --out $(VENV)/first >/dev/null 2>&1
	@touch $@

# torch first and pinned: an open range would pull gigabytes of accelerator packages.
$(VENV)/ready: $(VENV)/base
	@echo "installing what the tests need (a few minutes) …"
	@$(PIP) install torch==2.13.0
	@$(PIP) install --editable ".[neural,box2d,sb3,verify,storm,onnx,ray,dev]"
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

test: setup browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

hostile: setup
	$(BIN)/python -m tests.hostile

kills: setup
	$(BIN)/python -m tests.hostile.kills --kills 20

fuzz: setup
	@$(PIP) install atheris
	$(BIN)/python -m tests.hostile.fuzz

test-all: test hostile kills

audit: setup
	@$(PIP) install pip-audit
	$(BIN)/pip-audit --skip-editable

bench: setup
	@for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
