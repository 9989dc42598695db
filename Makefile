# Everything here sets itself up: it takes Python 3.10 or newer with venv, make, and a package index.
#
#   make run     the service on http://127.0.0.1:8080/, with its records in ./sampleapp.sqlite3
#   make test    the tests (three to four minutes, half of which go to processes: the service, the command, and
#                a mock cluster of Kafka)
#   make test-kafka   the tests against Apache Kafka itself: 3.9 and the newest 4.x, from Maven Central
#                (takes Java 17 or newer and Maven); others with make test-kafka KAFKA="2.8.2 3.0.2"
#   make test-container   the steps of the Containerfile, and what they make (takes Linux and root, and no engine)
#   make fuzz    a minute of made-up HTTP requests, compared with other servers; longer, or again, with
#                make fuzz FUZZ='--seconds 3600 --seed 7'; then some that schemathesis makes of /openapi.json
#   make check   lint, typing and documentation
#   make docs    the documentation as HTML, in docs/_build/html (its tests are a part of make check)
#   make lock    the newest versions of what the service needs, with hashes, in requirements.lock
#   make bench   what the service costs on this machine, and Kafka with it (about twenty minutes)
#   make clean   remove what the others have made

PYTHON ?= python3
# Options for the service, such as: make run OPTIONS='--listen tcp:9090:interface=127.0.0.1'
OPTIONS ?=
# Options for the fuzzer; see above.
FUZZ ?=
# Requests for each operation, made up from the description of the interface, after that.
EXAMPLES ?= 200
# Versions of Kafka for test-kafka; none for those that every commit has to pass.
KAFKA ?=

# How a shell tells that a process was ended by Ctrl-C, which is how the service is meant to end.
INTERRUPTED = 130

.DELETE_ON_ERROR:
.PHONY: run test test-kafka test-container fuzz check docs lock bench clean

RUN = .venv-run
DEV = .venv
DOCS = .venv-docs

run: $(RUN)/installed
	@echo
	@echo "  When it says that it listens, try in another terminal:"
	@echo
	@echo "    curl -i -H 'Content-Type: application/json' \\"
	@echo "         -d '{\"topic\": \"readings\", \"key\": \"kitchen\", \"content\": \"21.5\"}' \\"
	@echo "         http://127.0.0.1:8080/messages"
	@echo "    curl -i http://127.0.0.1:8080/"
	@echo
	@echo "  Ctrl-C ends it. If port 8080 is taken: make run OPTIONS='--listen tcp:9090:interface=127.0.0.1'"
	@echo
	@trap : INT; $(RUN)/bin/sampleapp serve $(OPTIONS) || test $$? -eq $(INTERRUPTED)

test: $(DEV)/installed
	$(DEV)/bin/python -m pytest --numprocesses logical --maxprocesses 2 --dist worksteal $(PYTEST_OPTIONS)

test-kafka: $(DEV)/installed
	SAMPLEAPP_KAFKA_VERSIONS='$(KAFKA)' $(DEV)/bin/python -m pytest tests/real_kafka -v $(PYTEST_OPTIONS)

fuzz: $(DEV)/installed
	$(DEV)/bin/python -m tests.fuzz.run $(FUZZ)
	SAMPLEAPP_SCHEMATHESIS_EXAMPLES=$(EXAMPLES) $(DEV)/bin/python -m pytest -q tests/process/test_schemathesis.py

check: $(DEV)/installed
	$(DEV)/bin/python -m tox -e lint,typing,docs

docs: $(DOCS)/installed
	$(DOCS)/bin/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	@echo "See docs/_build/html/index.html"

test-container: $(DEV)/installed
	$(DEV)/bin/python -m pytest tests/container -v $(PYTEST_OPTIONS)

lock: $(DEV)/installed
	$(DEV)/bin/python -m pip install --quiet --disable-pip-version-check uv
	echo 'setuptools >= 77' | $(DEV)/bin/uv pip compile --universal --python-version 3.10 --generate-hashes \
	    --upgrade --no-header --quiet --output-file requirements.lock setup.py -

bench: $(DEV)/bench-installed
	$(DEV)/bin/python benchmarks/run.py

clean:
	rm -rf $(RUN) $(DEV) $(DOCS) .tox build dist docs/_build src/*.egg-info .mypy_cache .pytest_cache .ruff_cache \
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

$(DEV)/bench-installed: $(DEV)/installed
	$(DEV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,bench]'
	@touch $@

define check_python
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
    { echo "sampleapp takes Python 3.10 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
endef
