.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
WORKERS ?= $(shell nproc | awk '{print $$1 < 3 ? $$1 + 1 : 4}')
BIN := $(VENV)/bin

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# the build back end's advice about editable installations is for nobody who reads this screen
INSTALL := PYTHONWARNINGS=ignore $(BIN)/python -m pip --disable-pip-version-check install --quiet --editable

$(BIN)/pyprof: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	@touch $@

$(BIN)/pytest: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[dev]'
	@touch $(BIN)/pyprof $@

install: $(BIN)/pytest ## set up .venv with pyprof (editable) and the development tools

demo: $(BIN)/pyprof ## record the bundled workload for five seconds into demo.html
	$(BIN)/pyprof record -d 5 -o demo.html -- $(BIN)/python examples/workload.py 6

# tests/conftest.py orders the files
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: $(BIN)/pytest ## run the tests that give the same result on every machine, and short recordings of real programs
	$(PYTEST) -m 'not live and not matrix'

test-live: $(BIN)/pytest ## run the tests of each interpreter, toolchain and kernel interface against running programs
	$(PYTEST) -m 'live or matrix'

test-all: $(BIN)/pytest ## `make test` and `make test-live` in one run, which is shorter
	$(PYTEST)

test-others: $(BIN)/pytest ## run the tests that `make quick` leaves out
	$(PYTEST) -m 'not unit'

LOOPS ?= 4

test-busy: $(BIN)/pytest ## make short recordings of real programs, and end recordings in each way, next to LOOPS=4 busy loops
	$(PYTEST) --dist load tests/smoke tests/session/test_ways_to_end.py --busy-loops $(LOOPS)

quick: $(BIN)/pytest ## run the tests that need no compiler, no rights and no program to look at (under a minute)
	$(PYTEST) -m unit -q

test-system: $(BIN)/pytest ## boot kernels of three Debian releases in qemu, x86-64 and AArch64, and let pyprof sample there (half an hour; tests/system)
	$(BIN)/python -m tests.system

SECONDS ?= 60
CORPUS ?= build/fuzz

$(VENV)/fuzz: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[fuzz]'
	@touch $(BIN)/pyprof $(BIN)/pytest $@

fuzz: $(VENV)/fuzz ## fuzz the readers of foreign data, guided by coverage: SECONDS=60 in all, READER=elf only that one, CORPUS=build/fuzz is gone on with
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --corpus $(CORPUS) $(READER)

test-kills: $(BIN)/pytest ## kill -9 a thousand profilers, a hundred recordings and a hundred servers at random moments (tests/survival)
	$(BIN)/python -m tests.survival

test-agents: $(BIN)/pytest ## kill -9 an agent for half an hour, then have one live through a day that takes 15 minutes (tests/survival/agents.py)
	$(BIN)/python -m tests.survival.agents

COVERED ?= tests

coverage: $(BIN)/pytest ## which lines of the package all tests run (COVERED='-m unit': those tests), as build/coverage/html
	rm -rf build/coverage
	mkdir -p build/coverage
	@# a test that counts samples may fail here: what is measured is slower
	-PYTHONPATH=$(CURDIR)/tooling/coverage COVERAGE_PROCESS_START=$(CURDIR)/pyproject.toml COVERAGE_FILE=$(CURDIR)/build/coverage/data \
	  $(BIN)/coverage run -m pytest -q -p no:cacheprovider $(COVERED)
	COVERAGE_FILE=build/coverage/data $(BIN)/coverage combine --quiet build/coverage
	COVERAGE_FILE=build/coverage/data $(BIN)/coverage html --quiet --directory build/coverage/html
	COVERAGE_FILE=build/coverage/data $(BIN)/python tooling/coverage/rooms.py

oracle: $(BIN)/pytest ## single-step system programs and compare every stack (minutes; see docs/accuracy.md)
	$(BIN)/python -m tests.oracle --from entry --every 4 --seconds 60 /bin/ls
	$(BIN)/python -m tests.oracle --from main --every 4 --seconds 60 /usr/bin/perl -e 'print sort { $$a <=> $$b } 1..9'

accuracy: $(BIN)/pytest ## take 100,000 samples of each program whose stacks are known, and record programs in step with the samples (hours; tests/accuracy, tests/lockstep)
	$(BIN)/python -m tests.accuracy
	$(BIN)/python -m tests.lockstep

PAGE := tooling/page

$(PAGE)/node_modules/.package-lock.json: $(PAGE)/package.json $(PAGE)/package-lock.json
	npm ci --prefix $(PAGE) --no-audit --no-fund --loglevel=error
	@touch $@

lint: $(BIN)/pytest lint-page ## ruff (lint and format), and lint-page
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-page: $(PAGE)/node_modules/.package-lock.json ## eslint and tsc on the scripts of both pages (needs npm)
	$(PAGE)/node_modules/.bin/eslint --config $(PAGE)/eslint.config.mjs --max-warnings 0 exporters/assets/page.*.js profiler/fleet/server/assets/fleet.*.js
	$(PAGE)/node_modules/.bin/tsc --project $(PAGE)
	$(PAGE)/node_modules/.bin/tsc --project $(PAGE)/tsconfig.fleet.json

types: $(BIN)/pytest ## mypy --strict on the installed package, the tests, the benchmarks and the library's examples
	rm -rf build/types build/lib
	$(BIN)/python -m pip install --quiet --no-deps --target build/types .
	@(echo 'pid = 0'; sed -n '/^```python/,/^```/{/^```/d;p}' docs/library.md) > build/types/library_page.py
	MYPYPATH=build/types:. $(BIN)/mypy -p pyprof -p pyprof_start -p tests -p bench -m library_page

$(BIN)/sphinx-build: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[dev,docs]'
	@touch $(BIN)/pyprof $(BIN)/pytest $@

docs: $(BIN)/sphinx-build ## the manual as HTML in build/docs; a broken link is an error
	rm -rf build/manual build/docs
	mkdir -p build/manual
	cp -r docs/. build/manual
	cp CONTRIBUTING.md build/manual/contributing.md
	cp CHANGELOG.md build/manual/changelog.md
	cp bench/README.md build/manual/bench.md
	$(BIN)/python tooling/manual/reference_tables.py build/manual
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c tooling/manual build/manual build/docs

# what CI needs, resolved once; a tenth of these modules is ever imported, so the interpreter compiles them when it is
$(VENV)/ci: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[fuzz,docs,native]' --no-compile
	@touch $(BIN)/pyprof $(BIN)/pytest $(BIN)/sphinx-build $(VENV)/fuzz $(VENV)/native $@

check: lint types test-all ## lint, types, tests

bpf: ## compile the program in the kernel (needs clang and llvm); its object is part of the package
	collectors/bpf/build

$(VENV)/native: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[dev,native]'
	@touch $(BIN)/pyprof $(BIN)/pytest $@

native: $(VENV)/native ## compile the walker of stacks and the analysis of code (the compiler comes from the package index) and the code that samples by stops (needs clang and lld); both are part of the package
	$(BIN)/python native/build.py
	collectors/native/build

RELEASE := build/release

$(VENV)/release: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[release,native]'
	@touch $(BIN)/pyprof $@

release: $(VENV)/release ## source, wheels, Debian packages, one file for x86-64, and their bills of materials with checksums, as build/release
	rm -rf $(RELEASE)
	$(BIN)/python -m build --sdist --outdir $(RELEASE)
	for machine in x86_64 aarch64 any; do PYPROF_MACHINE=$$machine $(BIN)/python -m build --wheel --outdir $(RELEASE) || exit 1; done
	for wheel in $(RELEASE)/*_x86_64.whl $(RELEASE)/*_aarch64.whl; do \
	  $(BIN)/python tooling/release/debian_package.py $$wheel $(RELEASE) || exit 1; done
	$(BIN)/python -m tooling.release.one_file $(RELEASE)/*_x86_64.whl $(RELEASE)
	cd $(RELEASE) && sha256sum * > SHA256SUMS

test-release: $(VENV)/release ## record with what `make release` built: each CPython's wheel, the one file and the Debian packages in new roots (needs root and mmdebstrap)
	$(BIN)/python -m tests.release $(RELEASE)

bench: $(BIN)/pytest ## run the benchmarks (see bench/README.md)
	$(BIN)/python -m bench

bench-quick: $(BIN)/pytest ## what being there costs, under 3 minutes, as build/costs.json (bench/compare tells two such files apart)
	mkdir -p build
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m bench.costs --quick -o build/costs.json

format: $(BIN)/pytest ## let ruff format and fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what the build made
	rm -rf $(VENV) build *.egg-info $(PAGE)/node_modules .mypy_cache .pytest_cache .ruff_cache

.PHONY: help bpf native release test-release install demo fuzz test test-live test-all test-others test-busy quick test-system test-kills test-agents coverage oracle lint lint-page types docs check bench bench-quick format clean
