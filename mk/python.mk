# SPDX-License-Identifier: Apache-2.0
# The Python package: its tests and its wheel. bindings/python has the sources.

PYTHON ?= python3
VENV ?= $(BUILD)/venv
PYTHON_SRC := $(abspath bindings/python/src)

.PHONY: python-programs python-test wheel

# What the package contains beside Python.
python-programs: $(SHARED) $(DAEMON) $(CLI)

# The attempt is made once; without numpy the tests are skipped and say so.
$(VENV)/packages: tests/python/requirements.txt
	$(say) VENV $(VENV)
	@tools/install-deps tools/deps-python.txt || true
	$(Q)$(PYTHON) -m venv $(VENV) && \
	    $(VENV)/bin/pip --disable-pip-version-check -q install -r $< && touch $@ || \
	    echo "python-test: the packages of $< cannot be installed"

python-test: python-programs $(VENV)/packages ## Tests of the Python package (ONLY=text narrows them)
	@if [ -e $(VENV)/packages ]; then \
	    $(TEST_ENV) PYTHONPATH=$(PYTHON_SRC) ONLY=$(ONLY) $(VENV)/bin/python tests/python/run.py; \
	else echo "0 passed, 0 failed, 1 skipped: the packages of tests/python/requirements.txt are missing"; fi

wheel: python-programs ## The Python package as a wheel in build/wheel, and its test in an empty environment
	@LOCKSTEP_BUILD=$(abspath $(BUILD)) PYTHON=$(PYTHON) tools/wheel $(abspath $(BUILD))/wheel

# --- PyTorch -------------------------------------------------------------------------------------

VENV_TORCH ?= $(BUILD)/venv-torch
TORCH_TEST_PACKAGES ?= torch==2.13.0 numpy expecttest

.PHONY: torch-test torch-conformance

# About 1 GB. The attempt is made once; without PyTorch its tests are skipped and say so.
$(VENV_TORCH)/packages:
	$(say) VENV $(VENV_TORCH)
	@tools/install-deps tools/deps-python.txt || true
	$(Q)$(PYTHON) -m venv $(VENV_TORCH)
	$(Q)$(VENV_TORCH)/bin/pip --disable-pip-version-check -q install $(TORCH_TEST_PACKAGES) \
	    && touch $@ || echo "torch-test: $(TORCH_TEST_PACKAGES) cannot be installed"

# Both environments, without a library. .ci/run makes them beside other work.
.PHONY: environments
environments: $(VENV)/packages $(VENV_TORCH)/packages ## The environments for tests of Python and PyTorch

TORCH_PYTHON_TEST ?= $(VENV_TORCH)/bin/python

.PHONY: torch-native
torch-native: python-programs $(if $(filter $(VENV_TORCH)/%,$(TORCH_PYTHON_TEST)),$(VENV_TORCH)/packages) ## Compile the native parts for PyTorch, which are else compiled when they are needed first
	@PYTHONPATH=$(PYTHON_SRC) $(TORCH_PYTHON_TEST) -m lockstep.torch.build

# Programs over lockstep/torch.h, built with the libtorch that is in the PyTorch above.
LIBTORCH_PROGRAMS := $(BUILD)/examples/libtorch/mnist $(BUILD)/tests/python/libtorch_check
CXX_LIBTORCH ?= $(if $(findstring clang,$(CC)),clang++,g++)

.PHONY: libtorch

libtorch: python-programs $(LIBTORCH_PROGRAMS) ## The example for the C++ frontend of PyTorch (libtorch)

$(LIBTORCH_PROGRAMS): $(BUILD)/%: %.cpp $(wildcard include/lockstep/*.h*) | $(SHARED) \
    $(if $(filter $(VENV_TORCH)/%,$(TORCH_PYTHON_TEST)),$(VENV_TORCH)/packages)
	$(say) CXX $<
	@mkdir -p $(@D)
	$(Q)flags=$$($(TORCH_PYTHON_TEST) tools/libtorch-flags) && \
	    $(CXX_LIBTORCH) -O1 -Wall -Wextra -Wshadow -Wconversion $(if $(WERROR),-Werror) -Iinclude \
	    $< -o $@ $$flags -L$(BUILD)/lib -llockstep -Wl,-rpath,$(abspath $(BUILD)/lib)

torch-test: python-programs $(if $(filter $(VENV_TORCH)/%,$(TORCH_PYTHON_TEST)),$(VENV_TORCH)/packages) ## Tests of lockstep.torch beside PyTorch (ONLY=text narrows them)
	@$(if $(and $(ONLY),$(if $(findstring libtorch,$(ONLY)),,other)),:,! $(TORCH_PYTHON_TEST) -c 'import torch' 2>&- || $(MAKE) libtorch)
	@$(TEST_ENV) PYTHONPATH=$(PYTHON_SRC) ONLY=$(or $(ONLY),test_torch) $(TORCH_PYTHON_TEST) tests/python/run.py

# SUITE=S1,S2,S3 narrows the suites, WORLDS="2 3" the worlds, ONLY=text the tests. BACKEND=gloo is
# the comparison.
torch-conformance: python-programs $(if $(filter $(VENV_TORCH)/%,$(TORCH_PYTHON_TEST)),$(VENV_TORCH)/packages) ## PyTorch's own tests over the backend lockstep, and with our DDP
	@for world in $(or $(WORLDS),2 3 8); do \
	    for door in $(if $(filter gloo,$(BACKEND)),stock,stock ddp); do \
	        $(TEST_ENV) PYTHONPATH=$(PYTHON_SRC) $(TORCH_PYTHON_TEST) \
	            tests/python/conformance/torch_suite.py --world $$world --door $$door \
	            --backend $(or $(BACKEND),lockstep) --only "$(ONLY)" \
	            $(if $(SUITE),--suite $(SUITE)) || exit 1; \
	    done; \
	done

# TORCH_BENCH="--quick --json FILE": options of bench/peers/torch_run.py. A quiet machine gives figures.
.PHONY: torch-bench
torch-bench: python-programs $(if $(filter $(VENV_TORCH)/%,$(TORCH_PYTHON_TEST)),$(VENV_TORCH)/packages) ## Steps of PyTorch over lockstep beside DDP with Gloo (TORCH_BENCH="--quick")
	@mkdir -p $(BUILD)/peers
	@$(CC) -std=c11 -O2 -D_GNU_SOURCE -shared -fPIC bench/peers/cubic.c -o $(BUILD)/peers/cubic.so -ldl
	@PYTHONPATH=$(PYTHON_SRC) $(TORCH_PYTHON_TEST) -m lockstep.torch.build || true
	@TORCH_PYTHON=$(abspath $(TORCH_PYTHON_TEST)) bench/peers/torch_run.py --build $(abspath $(BUILD)) $(TORCH_BENCH)

# TORCH_HOOKS_BENCH="--only native --json FILE": options of bench/peers/torch_hooks.py.
.PHONY: torch-hooks-bench
torch-hooks-bench: python-programs $(if $(filter $(VENV_TORCH)/%,$(TORCH_PYTHON_TEST)),$(VENV_TORCH)/packages) ## What hooks of PyTorch cost, in parts (40 seconds)
	@export PYTHONPATH=$(PYTHON_SRC) PYTHONWARNINGS=ignore PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 \
	    GLOO_SOCKET_IFNAME=lo LOCKSTEP_LIBRARY=$(abspath $(BUILD))/lib/liblockstep.so.0; \
	    $(TORCH_PYTHON_TEST) -m lockstep.torch.build || true; \
	    $(TORCH_PYTHON_TEST) bench/peers/torch_hooks.py $(TORCH_HOOKS_BENCH)
