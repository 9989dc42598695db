# Every target installs what it needs, given Python 3.11 or newer with venv, make, and a package index.
#
#   make run     the service on http://127.0.0.1:8080/, with its records in ./sampleapp.sqlite3
#   make test    the tests, without those that are marked as slow, and with few examples for each property. All of
#                both: .venv/bin/python -m pytest --hypothesis-profile all
#   make test-kafka   the tests against Apache Kafka that every commit must pass: the newest 4.x, and on 3.9 those
#                that depend on the version (from Maven Central; needs Java 17 or newer, and Maven). All tests,
#                on any versions: make test-kafka KAFKA="2.8.2 4.4.0"
#   make test-container   build and run the image by the steps of the Containerfile (needs Linux and root, no engine)
#   make test-all     what a release must pass: everything, on every installed Python and on Kafka 2.1 to 4.x
#   make fuzz    random HTTP requests for a minute, compared with other servers; then random requests by
#                schemathesis from /openapi.json. Longer, or repeated: make fuzz FUZZ='--seconds 3600 --seed 7'
#   make chaos   two gateways on three Kafka nodes: faults, and every response checked. Longer, repeated, or
#                on another version: make chaos CHAOS='--minutes 30 --seed 7 --kafka 3.9.2'
#   make check   lint, typing, and the documentation with the commands and programs of its pages
#   make docs    the documentation as HTML, in docs/_build/html (its tests are a part of make check)
#   make dist    what a release publishes, built reproducibly and checked, in dist/ (needs git)
#   make lock    the newest versions of what the service and `make dist` need, with hashes
#   make bench   what the service costs on this machine, and Kafka with it
#   make clean   remove everything that the other targets have made

PYTHON ?= python3
# Options for the service, such as: make run OPTIONS='--listen tcp:9090:interface=127.0.0.1'
OPTIONS ?=
# Options for the fuzzer; see above.
FUZZ ?=
# Options for the run of faults; see above.
CHAOS ?=
# Requests that schemathesis makes for each operation of /openapi.json.
EXAMPLES ?= 200
# Versions of Kafka for all tests of test-kafka; empty for what every commit must pass.
KAFKA ?=
# For test-all: versions for all tests, and old versions for the contract of brokers and for reading back.
ALL_KAFKA ?= 2.8.2 3.9.2 4.4.0
OLD_KAFKA ?= 2.1.1 3.0.2

# How a shell tells that a process was ended by Ctrl-C, which is how the service is meant to end.
INTERRUPTED = 130

.DELETE_ON_ERROR:
.PHONY: run test test-kafka test-container test-all fuzz chaos check docs dist lock bench clean

# Processes of the tests, and later runs, load compiled modules instead of compiling them again.
unexport PYTHONDONTWRITEBYTECODE

RUN = .venv-run
DEV = .venv
DOCS = .venv-docs
DIST = .venv-dist

# The commands that are shown use the port of OPTIONS, if it has one.
run: $(RUN)/installed
	@port=$$(printf '%s' "$$OPTIONS" | sed -n 's/.*--listen[ =]tcp:\([1-9][0-9]*\).*/\1/p'); \
	url=http://127.0.0.1:$${port:-8080}/; \
	echo; \
	echo "  When it says that it listens, try in another terminal:"; \
	echo; \
	echo "    curl -i -H 'Content-Type: application/json' \\"; \
	echo "         -d '{\"topic\": \"readings\", \"key\": \"kitchen\", \"content\": \"21.5\"}' \\"; \
	echo "         $${url}messages"; \
	echo "    curl -i $$url"; \
	test -z "$$port" || echo "    export SAMPLEAPP_URL=$$url    # for the sampleapp command"; \
	echo; \
	echo "  Ctrl-C ends it."; \
	test -n "$$port" || \
	    echo "  If port 8080 is taken: make run OPTIONS='--listen tcp:9090:interface=127.0.0.1'"; \
	echo
	@trap : INT; $(RUN)/bin/sampleapp serve $(OPTIONS) || test $$? -eq $(INTERRUPTED)

test: $(DEV)/installed
	$(DEV)/bin/python -m pytest -m 'not slow' --numprocesses 3 --dist worksteal $(PYTEST_OPTIONS)

test-kafka: $(DEV)/installed
	SAMPLEAPP_KAFKA_VERSIONS='$(KAFKA)' $(DEV)/bin/python -m pytest tests/real_kafka -v \
	    --numprocesses 3 $(if $(KAFKA),,-m 'not release') $(PYTEST_OPTIONS)

test-all: test test-container
	$(MAKE) test-kafka KAFKA='$(ALL_KAFKA)'
	SAMPLEAPP_KAFKA_VERSIONS='$(OLD_KAFKA)' $(DEV)/bin/python -m pytest \
	    tests/real_kafka/test_contract.py tests/real_kafka/test_reading_back.py $(PYTEST_OPTIONS)
	$(DEV)/bin/python -m tox run

fuzz: $(DEV)/installed
	$(DEV)/bin/python -m tests.fuzz.run $(FUZZ)
	SAMPLEAPP_SCHEMATHESIS_EXAMPLES=$(EXAMPLES) $(DEV)/bin/python -m pytest -q tests/process/test_schemathesis.py

chaos: $(DEV)/installed
	$(DEV)/bin/python -m tests.chaos.run $(CHAOS)

check: $(DEV)/installed
	$(DEV)/bin/python -m tox -e lint,typing,docs

docs: $(DOCS)/installed
	$(DOCS)/bin/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	@echo "See docs/_build/html/index.html"

dist: $(DIST)/installed
	$(DIST)/bin/python release/dist.py

test-container: $(DEV)/installed
	$(DEV)/bin/python -m pytest tests/container -v $(PYTEST_OPTIONS)

lock: $(DEV)/installed
	$(DEV)/bin/python -m pip install --quiet --disable-pip-version-check uv
	echo 'setuptools >= 77' | $(DEV)/bin/uv pip compile --universal --python-version 3.11 --generate-hashes \
	    --extra schemas --upgrade --no-header --quiet --output-file requirements.lock setup.py -
	$(DEV)/bin/uv pip compile --universal --python-version 3.11 --generate-hashes \
	    --upgrade --no-header --quiet --constraint requirements.lock \
	    --output-file release/requirements.lock release/requirements.in

bench: $(DEV)/bench-installed
	$(DEV)/bin/python benchmarks/run.py

clean:
	rm -rf $(RUN) $(DEV) $(DOCS) $(DIST) .tox build dist docs/_build src/*.egg-info .mypy_cache .pytest_cache .ruff_cache \
	    .hypothesis .import_linter_cache

# The service as it is installed anywhere: from the sources as they are now, and nothing beside.
$(RUN)/installed: setup.py pyproject.toml $(shell find src twisted -name '*.py' -o -name '*.sql')
	@$(call check_python)
	$(PYTHON) -m venv $(RUN)
	@rm -rf build
	$(RUN)/bin/python -m pip install --quiet --disable-pip-version-check .
	@touch $@

# For work on it: an editable installation, with what the tests and the tools need.
$(DEV)/installed: setup.py pyproject.toml
	@$(call check_python)
	$(PYTHON) -m venv $(DEV)
	$(DEV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# What builds the documentation, and the package that it describes; none of what the tests need.
$(DOCS)/installed: setup.py pyproject.toml
	@$(call check_python)
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

# The tools that build and check a release, in the versions of their lock file.
$(DIST)/installed: release/requirements.lock
	@$(call check_python)
	$(PYTHON) -m venv $(DIST)
	$(DIST)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
	    --requirement release/requirements.lock
	@touch $@

$(DEV)/bench-installed: $(DEV)/installed
	$(DEV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,bench]'
	@touch $@

define check_python
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
    { echo "sampleapp takes Python 3.11 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
endef
