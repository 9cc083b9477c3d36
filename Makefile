# From a fresh clone: `make run`. It needs Python 3.11 or newer, and a C++ compiler.
# Everything is installed into .venv by pip, with your own pip settings; a second call is quick.

PYTHON ?= python3
VENV ?= .venv
MODEL ?= smollm2-135m
PROMPT ?= What is the capital of France?
PYTEST_ARGS ?=
SERVE_ARGS ?=
RIVALS_DIR ?= .rivals

PY := $(VENV)/bin/python
FIRSTHAND := $(VENV)/bin/firsthand
PIP := $(PY) -m pip --disable-pip-version-check
CSRC := src/firsthand/compute/native/csrc
NATIVE_SOURCES := CMakeLists.txt $(wildcard $(CSRC)/*)
NATIVE_BUILD := build/native
SANITIZE_BUILD := build/sanitize
NATIVE_PLACE := import sys; from importlib.util import find_spec; \
  found = find_spec("firsthand.compute.native._native"); \
  print(found.origin if found else f"src/firsthand/compute/native/{sys.argv[1]}")
CMAKE = $(VENV)/bin/cmake -S . -G Ninja --log-level=WARNING \
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV))/bin/ninja \
  -DPython_EXECUTABLE=$(abspath $(PY)) -Dnanobind_DIR="$$($(PY) -m nanobind --cmake_dir)"
LINT := bench docs examples src tests
PURE := not native and not torch and not oracle and not model and not slow and not gpu \
  and not process and not soak

.PHONY: run chat serve test simulate sanitize check bench rivals compare soak format generated docs install \
  native clean
.DEFAULT_GOAL := run

run: $(VENV)/.installed ## fetch the default model and answer one prompt
	@$(FIRSTHAND) pull $(MODEL) >&2
	@echo "Prompt: $(PROMPT)"
	@$(FIRSTHAND) run $(MODEL) "$(PROMPT)" --chat --max-tokens 48 --temperature 0 --report

chat: $(VENV)/.installed ## talk with the default model
	@$(FIRSTHAND) pull $(MODEL) >&2
	@$(FIRSTHAND) chat $(MODEL) --temperature 0.2 --top-p 0.9

test: $(VENV)/.oracles $(VENV)/.system ## every test that needs no GPU; fetches both models first
	$(FIRSTHAND) pull smollm2-135m
	$(FIRSTHAND) pull gemma3-270m
	FIRSTHAND_REQUIRE_MODELS=1 $(PY) -m pytest -m "not gpu and not soak" $(PYTEST_ARGS)

SEED ?= 0
STEPS ?= 10000000
simulate: $(VENV)/.checks ## random workloads on the real scheduler, from SEED on
	@$(PY) -m tests.simulation --seed $(SEED) --steps $(STEPS)

# Both libraries come before Python: one sees every allocation, the other has the exceptions that it
# watches. Leaks are not looked for: an interpreter leaves much to its end.
CXX_LIBRARY = $$($${CXX:-c++} -print-file-name=$(1))
sanitize: $(VENV)/.checks $(VENV)/.compilers ## tests of the C++, each address and operation checked
	@$(CMAKE) -B $(SANITIZE_BUILD) -DFIRSTHAND_SANITIZE=ON >&2
	@$(VENV)/bin/cmake --build $(SANITIZE_BUILD) >&2
	FIRSTHAND_TEST_NATIVE="$$(ls -t $(SANITIZE_BUILD)/_native*.so | head -n 1)" \
	  LD_PRELOAD="$(call CXX_LIBRARY,libasan.so) $(call CXX_LIBRARY,libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 \
	  $(PY) -m pytest tests/compute/native tests/engine/test_sampler.py -m "not slow" $(PYTEST_ARGS)

check: $(VENV)/.checks ## format, lint, types, and the tests that need nothing but Python
	$(PY) -m ruff format --check $(LINT)
	$(PY) -m ruff check $(LINT)
	$(VENV)/bin/clang-format --dry-run -Werror $(wildcard $(CSRC)/*.?pp)
	$(PY) -m mypy
	$(PY) -m pytest -n 2 -m "$(PURE)" $(PYTEST_ARGS)

format: $(VENV)/.checks
	$(PY) -m ruff format $(LINT)
	$(PY) -m ruff check --fix $(LINT)
	$(VENV)/bin/clang-format -i $(wildcard $(CSRC)/*.?pp)

generated: $(VENV)/.installed ## the files made of the catalogue of metrics, written anew
	$(PY) -m firsthand.observe.exports

docs: $(VENV)/.docs ## the site: book, handbook, pages; a link that leads nowhere ends it
	@$(PY) -m sphinx -q -W --keep-going -b html docs build/docs
	@echo build/docs/index.html

bench: $(VENV)/.installed ## one JSON line per measurement, kept in bench/results/
	@$(FIRSTHAND) pull $(MODEL) >&2
	@$(PY) bench/record.py latency $(MODEL)
	@$(PY) bench/record.py startup $(MODEL)

serve: $(VENV)/.installed ## serve the default model on this machine, in the form of OpenAI's API
	@$(FIRSTHAND) pull $(MODEL) >&2
	@$(FIRSTHAND) serve $(MODEL) $(SERVE_ARGS)

rivals: $(VENV)/.installed ## install the other engines into .rivals, convert the model for each
	@$(FIRSTHAND) pull $(MODEL) >&2
	@$(PY) bench/rivals/install.py --model $(MODEL) --rivals $(RIVALS_DIR)

compare: $(VENV)/.installed ## ours and the rivals that are installed, in turns; takes half an hour
	@$(FIRSTHAND) pull $(MODEL) >&2
	@$(PY) bench/compare.py --model $(MODEL) --rivals $(RIVALS_DIR)

soak: $(VENV)/.checks ## the long runs: memory, overload, vanishing clients, engines that die
	$(PY) -m pytest -m soak $(PYTEST_ARGS)

install: $(VENV)/.installed

# The editable install has a copy of the kernels, which Python finds before one in src/. So the new
# file goes to where Python loads it from, and only without any into src/: there is never a second.
# It is put there by a rename: a process that has the old file mapped keeps it.
native: $(VENV)/.compilers ## while working on the C++: compile what changed, put it in place
	@$(CMAKE) -B $(NATIVE_BUILD) >&2
	@$(VENV)/bin/cmake --build $(NATIVE_BUILD) >&2
	@built=$$(ls -t $(NATIVE_BUILD)/_native*.so | head -n 1) && \
	  place=$$(PYTHONPATH=src $(PY) -c '$(NATIVE_PLACE)' "$${built##*/}") && \
	  cp "$$built" "$$place.new" && mv -f "$$place.new" "$$place" && echo "$$place"
	@test ! $(VENV)/.installed -nt pyproject.toml || touch $(VENV)/.installed

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src -name '*.so' -delete

# Stamps: each says that a step was done for the sources it names.

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; name it with 'make PYTHON=python3.12 ...'." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "'$(PYTHON) -m venv' failed. On Debian and Ubuntu: apt-get install python3-venv." >&2; \
	  exit 1; }

$(VENV)/.installed: pyproject.toml $(NATIVE_SOURCES) | $(VENV)/bin/python
	@command -v $${CXX:-c++} >/dev/null || { \
	  echo "A C++20 compiler is needed. On Debian and Ubuntu: apt-get install g++." >&2; exit 1; }
	@echo "Installing into $(VENV) and compiling the kernels; this takes a few minutes once." >&2
	$(PIP) install --quiet --editable .
	@find src -name '*.so' -delete
	@touch $@

# Dependency groups need a pip of 2025 or newer.
$(VENV)/.pip: | $(VENV)/bin/python
	$(PIP) install --quiet --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.compilers: | $(VENV)/bin/python
	$(PIP) install --quiet "cmake>=3.24" ninja "nanobind>=2.9"
	@touch $@

$(VENV)/.checks: constraints.txt $(VENV)/.installed | $(VENV)/.pip
	$(PIP) install --quiet --constraint constraints.txt --group check --group service
	@touch $@

$(VENV)/.docs: constraints.txt | $(VENV)/.pip
	$(PIP) install --quiet --constraint constraints.txt --group docs
	@touch $@

# torch is asked for by its exact version and first, so that nothing below can choose another.
$(VENV)/.oracles: constraints.txt $(VENV)/.checks
	$(PIP) install --quiet --constraint constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(PIP) install --quiet --constraint constraints.txt --group oracles --group docs
	@touch $@

# What Debian's packages bring to the tests: other instruction sets by emulation, a proxy,
# certificates, Prometheus and its Alertmanager, a browser with Chinese glyphs, queues, a database,
# network namespaces. Without them those tests are left out.
SYSTEM := qemu-user g++-aarch64-linux-gnu libsimde-dev nginx-light openssl \
  prometheus prometheus-alertmanager chromium fonts-noto-cjk \
  redis-server nats-server rabbitmq-server postgresql skopeo iproute2
$(VENV)/.system: Makefile | $(VENV)/bin/python
	@if command -v qemu-aarch64 >/dev/null && command -v aarch64-linux-gnu-g++ >/dev/null && \
	  test -f /usr/include/simde/x86/avx512.h && command -v openssl >/dev/null && \
	  PATH="$$PATH:/usr/sbin" command -v nginx >/dev/null && \
	  command -v promtool >/dev/null && command -v amtool >/dev/null && \
	  command -v chromium >/dev/null && command -v redis-server >/dev/null && \
	  command -v nats-server >/dev/null && command -v skopeo >/dev/null && \
	  PATH="$$PATH:/usr/sbin" command -v ip >/dev/null && \
	  test -d /usr/lib/rabbitmq && test -d /usr/lib/postgresql; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq $(SYSTEM) >/dev/null || \
	  echo "apt-get could not install $(SYSTEM)." >&2; \
	else echo "For the tests that need them: apt-get install $(SYSTEM)." >&2; fi
	@touch $@
