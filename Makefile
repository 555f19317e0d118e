# GNU make. From a fresh clone: `make demo` or `make test`; the set-up is part of both.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests bind port 0 and own their directories, so several at a time are safe; many of them wait
# more than they compute. loadgroup: tests marked xdist_group share one process.
PYTEST := $(BIN)/python -m pytest -q -n 3 --dist loadgroup

# A node is many processes: where bytecode is not kept, each of them compiles all modules anew.
unexport PYTHONDONTWRITEBYTECODE

# Seconds after which something hangs.
CRASH_S := 600
FAULTS_S := 1200
NODES_S := 900
SPARK_S := 1200
SOAK_S := 14400
CLIENTS_S := 1800
CLUSTER_S := 1200
DEPLOY_S := 1800
CONSOLE_S := 600

.DEFAULT_GOAL := help
.PHONY: help setup demo lint test unmarked check nodes console interop clients cluster deploy crash faults spark soak clean

help: ## prints this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## makes .venv and installs the project into it, when that is not done yet

$(STAMP): pyproject.toml hatch_build.py $(wildcard protocol/kernel/*.c)
	@set -e; \
	echo "setting up $(VENV): some 700 MB, a minute or two" >&2; \
	if command -v uv >/dev/null 2>&1; then \
	  $(BIN)/python -c '' 2>/dev/null || uv venv --quiet --clear --python '>=3.11' $(VENV); \
	  uv pip install --quiet --python $(BIN)/python -e '.[dev,spark]'; \
	else \
	  command -v $(PYTHON) >/dev/null || { \
	    echo "error: $(PYTHON) is not on the PATH (set PYTHON to a Python 3.11 or newer)" >&2; exit 1; }; \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "error: $(PYTHON) is older than 3.11 (set PYTHON to a newer one)" >&2; exit 1; }; \
	  $(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	    $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	      echo "error: $(PYTHON) cannot make virtual environments: its module ensurepip is missing" >&2; \
	      echo "try: apt-get install python3-venv (the Debian package that holds it)" >&2; exit 1; }; \
	    $(PYTHON) -m venv --clear $(VENV); }; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,spark]'; \
	fi
	@touch $@

demo: setup ## shows the node at work on a new directory
	@$(BIN)/keelog demo --format table

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# mypy computes on one core alone for half a minute: the tests run beside it.
test: setup ## format, lint, types and all tests but those of the targets below
	@$(MAKE) --no-print-directory -j 2 lint unmarked

# One more than elsewhere: here are most of those that wait.
unmarked: setup
	$(PYTEST) -n 4 -m 'not nodes and not crash and not faults and not spark_long and not soak and not interop and not clients and not cluster and not deploy and not browser'

check: lint ## the same without marked tests: seconds
	$(PYTEST) -m 'not process and not nodes and not crash and not faults and not spark and not spark_long and not soak and not interop and not clients and not cluster and not deploy and not browser'

# A test that is marked crash or faults as well runs there.
nodes: setup ## nodes that are killed, starved, filled, restarted, copied: a quarter of an hour at most
	timeout $(NODES_S) $(PYTEST) -n 4 -m 'nodes and not crash and not faults and not cluster'

# Needs Debian's chromium and fonts-dejavu-core. KEELOG_SHOTS=DIR writes a picture of each page.
console: setup ## the console in a browser (needs chromium): four minutes at most
	timeout $(CONSOLE_S) $(BIN)/python -m pytest -q -m browser tests/console

# One at a time: the first test builds the Java probe.
interop: setup ## compares with RocketMQ's own store (needs java and mvn)
	$(BIN)/python -m pytest -q -rs -m interop

# One at a time: the tests share builds, and both brokers run beside the clients.
clients: setup ## RocketMQ's clients and its own tests at a node and at a broker: half an hour at most
	timeout $(CLIENTS_S) $(BIN)/python -m pytest -q -rs --durations=12 -m clients tests/clients

# The first line builds the Java program, so that several tests at a time find it built. Its JVMs
# live for seconds: what the second compiler makes of them would cost more than it gains.
cluster: setup ## slaves and masters of RocketMQ beside nodes, kills of either: twenty minutes at most
	$(BIN)/python -c 'from scripts.rivals.rocketmq import class_path; class_path()'
	JDK_JAVA_OPTIONS='-XX:TieredStopAtLevel=1 -XX:+UseSerialGC' \
	  timeout $(CLUSTER_S) $(PYTEST) -rs --durations=12 -m cluster

# Needs root, debootstrap, systemd-nspawn and buildah (Debian's debootstrap, systemd-container, buildah),
# and a network: Debian's and Python's packages. What is left out is said, and why.
deploy: setup ## the unit by systemd and the image in containers: half an hour at most
	timeout $(DEPLOY_S) $(BIN)/python -m pytest -q -rs --durations=8 -m deploy tests/deploy

crash: setup ## power losses on a simulated disk, over 100,000 images: ten minutes at most
	timeout $(CRASH_S) $(PYTEST) -rs -m crash

# Who cannot mount a file system as root sees which tests were skipped, and why.
faults: setup ## kills, bad and full disks, flipped bits, broken requests: twenty minutes at most
	timeout $(FAULTS_S) $(PYTEST) -rs -m faults

spark: setup ## Spark's long tests, marked spark_long: every store, many damages; twenty minutes at most
	timeout $(SPARK_S) $(PYTEST) -rs -m spark_long

soak: setup ## the same for hours: 2,000 kills, power losses, a million images and broken requests
	timeout $(SOAK_S) $(BIN)/python -m tests.soak.kill.anything --kills 2000
	test "$$(id -u)" -ne 0 || timeout $(SOAK_S) $(BIN)/python -m tests.soak.kill.anything --power --kills 300
	timeout $(SOAK_S) $(BIN)/python -m tests.soak.fuzz.frames --count 1000000
	timeout $(SOAK_S) $(PYTEST) -rs -m soak

clean: ## removes .venv, caches and builds
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis tests/interop/java/target tests/interop/access/target tests/clients/*/target
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
