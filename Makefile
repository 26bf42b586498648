# boathook: every task is one of these targets. They need Python 3.11 or later, git and make, and install the rest.

.DEFAULT_GOAL := help
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
INSTALL := scripts/install-packages $(VENV)
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-annotate --no-header
# A file's tests share its servers, so one process runs them. Most tests wait, so there are more processes than
# cores; fewer of them for the tests that measure time. Files in their order end with many short ones, so that all
# processes end at about the same time.
PYTEST := $(BIN)/pytest --dist loadfile --no-loadscope-reorder
# The checks run beside the tests and their preparation, which leave the processors idle for a tenth of the time. What
# they find is shown at once, and again below the tests' summary.
CHECK_LOG := $(VENV)/check.log
TEST = echo "Checking the code beside the tests ..."; \
	{ $(MAKE) --no-print-directory check > $(CHECK_LOG) 2>&1 || { cat $(CHECK_LOG) >&2; exit 1; }; } & checks=$$!; \
	{ $(MAKE) --no-print-directory -j 2 compile programs && $(PYTEST) -n 5 $(1) $(ARGS); }; tests=$$?; \
	wait $$checks || { cat $(CHECK_LOG) >&2; exit 1; }; exit $$tests
PACKAGES := $(wildcard packages/*)
BENCHMARKS := ingest duplicates publish handle latency deliver fanout isolation both spool buffer gateways lane cells start

# uv installs for the Python that is here; it never fetches another one.
export UV_PYTHON_DOWNLOADS := never
export UV_PYTHON := $(BIN)/python

.PHONY: help setup dev demo test test-all test-apps programs compile check format bench soak docs screenshots wheel release lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.run.stamp ## create .venv with boathook and what it runs on, all versions locked

dev: $(VENV)/.dev.stamp ## the same, with everything the tests and checks use

demo: setup ## start everything and send it real signed traffic; ARGS="--seconds 20" stops by itself, "--buffer rabbitmq" shows an outage
	@$(BIN)/boathook demo $(ARGS)

test: dev ## run the checks and the tests that every change needs; ARGS="-k name" picks some
	@$(call TEST)

test-apps: dev programs ## run all tests of the ready-made apps
	@$(PYTEST) -n 5 -m "not soak" --hypothesis-profile=full tests/apps $(ARGS)

test-all: dev ## run the checks and all tests, with every example of the property tests; those of the apps at the end
	@$(call TEST,-m "not (app or soak)" --hypothesis-profile=full)
	@$(MAKE) --no-print-directory test-apps

programs:
	@scripts/need-program promtool prometheus
	@scripts/need-program chromium chromium
	@scripts/need-program curl curl
	@scripts/need-program strace strace
	@scripts/need-program systemd-analyze systemd
	@scripts/need-program rabbitmqctl rabbitmq-server || echo "The tests with brokers are skipped." >&2
	@scripts/need-program redis-server redis-server || echo "The tests with Redis are skipped." >&2
	@scripts/need-program pgbouncer pgbouncer || echo "The tests behind a pooler are skipped." >&2

# Otherwise each of pytest's processes would compile all test files after a change.
compile: dev
	@$(BIN)/pytest --collect-only -q > $(VENV)/collect.log || { tail -n 50 $(VENV)/collect.log >&2; exit 1; }

check: dev ## run the linters and the type checker only
	@$(BIN)/ruff format --check --quiet . || { echo "Run 'make format' to lay the files above out." >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo > $(VENV)/lint-imports.log || { cat $(VENV)/lint-imports.log >&2; exit 1; }

format: dev ## format the code and fix what the linter can fix
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

bench: dev ## measure; each figure is set against a ceiling measured in the same run
	@scripts/need-program wrk wrk
	@for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks $$name $(ARGS) || exit 1; done

soak: dev ## run every fault scenario, all tests that take many minutes and a sample of mutants, and write tests/faults/README.md
	@scripts/need-program nginx nginx-light
	@scripts/need-program haproxy haproxy
	@scripts/need-program strace strace
	@rm -rf build/faults && mkdir -p build/faults
	@BOATHOOK_TEST_RESULTS=$(CURDIR)/build/faults $(BIN)/pytest -m "fault or soak" $(ARGS)
	@$(BIN)/python -m tests.faults.rig.report build/faults
	@$(BIN)/python -m scripts.mutants
	@$(BIN)/python -m scripts.mutants --chosen

docs: dev ## rewrite the generated pages of docs/, and build the site, which needs no network, into build/site
	@$(BIN)/python -m scripts.write_docs
	@$(BIN)/python -m scripts.write_dashboards
	@$(BIN)/python -m scripts.write_chart
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "Open build/site/index.html"

screenshots: dev ## run the demo for twenty minutes and retake the screenshots in docs/screenshots
	@scripts/need-program chromium chromium
	@$(BIN)/python -m scripts.take_screenshots $(ARGS)

wheel: dev ## build the wheels of boathook, its apps and its demo into dist/
	@for source in . $(PACKAGES); do (cd $$source && $(abspath $(BIN))/python -m hatchling build -t wheel -d $(CURDIR)/dist) || exit 1; done

release: dev ## build dist/ with wheels, source distributions, an SBOM and checksums, and try the wheels
	@scripts/build-release $(VENV)

lock: dev ## choose the newest allowed versions and write requirements/*.lock
	@$(COMPILE) --upgrade --all-extras --group dev --group build pyproject.toml -o requirements/dev.lock
	@$(COMPILE) --extra embedded --extra pages --extra rabbitmq --extra redis --group build -c requirements/dev.lock pyproject.toml -o requirements/run.lock
	@$(COMPILE) --group pyproject.toml:release -c requirements/dev.lock -o requirements/release.lock
	@echo uv | $(COMPILE) -c requirements/dev.lock - -o requirements/uv.lock

clean: ## remove .venv, caches and built files; data in .boathook stays
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	@find src packages tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/uv: requirements/uv.lock
	@scripts/make-venv $(VENV) $(PYTHON)
	@echo "Installing uv, which installs the rest ..."
	@$(BIN)/python -m pip --no-input --disable-pip-version-check install --quiet --require-hashes -r requirements/uv.lock
	@touch $@

# boathook itself, its apps and its demo go in as links to their src/, with the locked build backend.
$(VENV)/.run.stamp: requirements/run.lock pyproject.toml $(PACKAGES:%=%/pyproject.toml) $(BIN)/uv
	@echo "Installing boathook and the locked packages it runs on into $(VENV) ..."
	@$(INSTALL) --require-hashes --no-deps -r requirements/run.lock
	@$(INSTALL) --no-deps --no-build-isolation --editable . $(PACKAGES:%=--editable %)
	@touch $@

$(VENV)/.dev.stamp: requirements/dev.lock $(VENV)/.run.stamp
	@echo "Installing the locked packages of tests and checks, some 1.3 GB ..."
	@$(INSTALL) --require-hashes --no-deps -r requirements/dev.lock
	@$(BIN)/uv pip check --quiet
	@touch $@
