# SPDX-License-Identifier: Apache-2.0
# Tests, sanitizer runs, lint and the demo.

KINDS := unit sim conformance fault golden fuzz browser
KIND ?= $(KINDS)
ONLY ?=
CASE ?=

# --- test programs: one for each tests/<kind>/test_*.c, tests/unit/<folder>/test_*.c ------------

UNIT_FOLDERS := $(patsubst tests/%/,%,$(wildcard tests/unit/*/))
TEST_LIBS := -lcmocka -Wl,--wrap=_cmocka_run_group_tests $(DAEMON_LIBS)
# They are many, and gold, which comes with binutils, links one in a third of the usual time.
TEST_LINK := $(LINK) $(if $(shell command -v ld.gold),-fuse-ld=gold)
# UndefinedBehaviorSanitizer looks at what we ship; tests would take a third longer to compile. Code of
# tests that computes what is right, on one thread, is nothing for ThreadSanitizer.
UNWATCHED := $(patsubst %,tests/conformance/transport_%.c,reference)
FLAGS_FOR_TEST = $(OPTIMIZE_TESTS) $(if $(findstring undefined,$(SAN)),-fno-sanitize=undefined) \
    $(if $(findstring thread,$(SAN)),$(if $(filter $(UNWATCHED),$<),-fno-sanitize=thread))

# Code that tests share is in archives, too: a program gets only what it uses of it, and of the library.
# Otherwise each unit test would be all of the library, and take ten times as long to link.
SUPPORT := $(BUILD)/tests/support/shared.a
shared_o = $(filter-out $(BUILD)/obj/tests/$(1)/test_%,$(call objects,tests/$(1)/*.c))
shared = $(BUILD)/tests/$(1)/shared.a $(SUPPORT)
SHARED_KINDS := support $(filter-out unit fuzz browser,$(KINDS)) $(UNIT_FOLDERS)
$(BUILD)/shared: FORCE
	@mkdir -p $(@D)
	@echo '$(foreach kind,$(SHARED_KINDS),$(call shared_o,$(kind)))' | cmp -s - $@ || \
	    echo '$(foreach kind,$(SHARED_KINDS),$(call shared_o,$(kind)))' > $@

define shared_kind
$(BUILD)/tests/$(1)/shared.a: $$(call shared_o,$(1)) $(BUILD)/shared
	@mkdir -p $$(@D)
	@rm -f $$@
	$$(Q)$(AR) qcs $$@ $$(filter %.o,$$^)
endef
$(foreach kind,$(SHARED_KINDS),$(eval $(call shared_kind,$(kind))))

define test_kind
$(BUILD)/tests/$(1)/test_%: $(BUILD)/obj/tests/$(1)/test_%.o $$(call shared,$(1)) $$(ARCHIVES)
	$$(say) LD $$@
	@mkdir -p $$(@D)
	$$(Q)$$(TEST_LINK) -o $$@ -Wl,--start-group $$^ -Wl,--end-group $$(TEST_LIBS)
endef
$(foreach kind,$(SHARED_KINDS),$(eval $(call test_kind,$(kind))))

# The kernels of a device, compiled for the host: the one piece of C++, for it includes CUDA C.
CXX_FOR := $(if $(findstring clang,$(CC)),clang++,g++)
EMULATION_O := $(BUILD)/obj/tests/support/device_emulation.o
$(EMULATION_O): tests/support/device_emulation.cc $(BUILD)/flags
	$(say) CXX $<
	@mkdir -p $(@D)
	$(Q)$(CXX_FOR) -std=c++17 -Wall -Wno-unknown-pragmas $(if $(WERROR),-Werror) $(OPTIMIZE) $(DEBUG_INFO) -fPIC \
	    -ffp-contract=off -fno-strict-aliasing -fno-exceptions -fno-rtti $(INCLUDES) $(SANITIZE) \
	    -MMD -MP -c $< -o $@
$(BUILD)/tests/unit/worker/test_device_kernels: $(EMULATION_O)

# The tool is no archive: a test of one of its files names it.
$(BUILD)/tests/unit/cli/test_cli_http: $(BUILD)/obj/cli/ask/http.o $(BUILD)/obj/cli/ask/http_tls.o
$(BUILD)/tests/unit/cli/test_harmless: $(BUILD)/obj/cli/ask/json_read.o
$(BUILD)/tests/unit/cli/test_run_set: $(BUILD)/obj/cli/run/run_set.o
$(BUILD)/tests/unit/cli/test_run_hosts: $(addprefix $(BUILD)/obj/cli/run/,host_list.o relay.o report.o request.o run_set.o verdict.o) \
    $(BUILD)/obj/cli/common/cli.o
$(BUILD)/tests/unit/cli/test_run_joins: $(addprefix $(BUILD)/obj/cli/run/,joins.o report.o run_set.o verdict.o) \
    $(BUILD)/obj/cli/common/cli.o

# Stand-ins for libcuda and libnccl, loaded by tests of devices (tests/fake_gpu/fake_gpu.h). Kernels
# are their references.
FAKE_CUDA := $(BUILD)/tests/fake_gpu/libcuda-fake.so
FAKE_NCCL := $(BUILD)/tests/fake_gpu/libnccl-fake.so
FAKE_SETTINGS_O := $(BUILD)/obj/tests/fake_gpu/settings.o
FAKE_NCCL_O := $(call objects,tests/fake_gpu/nccl*.c)
FAKE_CUDA_O := $(filter-out $(FAKE_NCCL_O),$(call objects,tests/fake_gpu/*.c)) \
    $(BUILD)/obj/tests/support/device_reference.o
fake_library = $(LINK) -shared -o $@ -Wl,-soname,$(@F) -Wl,-z,nodelete -Wl,--exclude-libs,ALL \
    -Wl,--start-group $(filter %.o %.a,$^) -Wl,--end-group $(filter %.so,$^) -ldl -lpthread -lm

$(FAKE_CUDA): $(FAKE_CUDA_O) $(call lib,worker) $(call lib,protos) $(call lib,base)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(fake_library)

$(FAKE_NCCL): $(FAKE_NCCL_O) $(FAKE_SETTINGS_O) $(FAKE_CUDA) $(call lib,base)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(fake_library) -Wl,-rpath,'$$ORIGIN'

FAKES := $(FAKE_CUDA) $(FAKE_NCCL)

# $(ONLY) is a piece of the path: ONLY=ring, ONLY=sim/test_join.
chosen = $(if $(ONLY),$(foreach file,$(1),$(if $(findstring $(ONLY),$(file)),$(file))),$(1))
# A race needs two threads. THREADED leaves out what starts none: simulations, most unit tests,
# transports whose peer is played by the test, and those of processes that have one thread each.
WITH_THREADS := $(if $(THREADED),$(shell grep -lE 'thread_start|pthread_create|rank_threads_run' tests/unit/*/test_*.c))
ONE_THREAD := $(if $(THREADED),tests/fault/test_shared_death.c $(shell grep -lE 'transport_(stage|couple|crew)\.h' tests/conformance/test_*.c | \
    xargs grep -LE 'thread_start|pthread_create|fleet_run'))
# Races are in what threads share. These programs look at numbers, sizes, limits and refusals, or start jobs by scripts
# whose processes share what other programs have: fault/test_run_output.sh stands for `lockstep run`, and
# fault/test_recovery, _plain and _state for survivors of a death.
NO_RACES := $(patsubst %,tests/%,conformance/test_transport_fill.c conformance/test_reducer_wire.c conformance/test_reducer_numbers.c \
    conformance/test_reducer_unused.c conformance/test_reducer_leaves.c conformance/test_alone.c conformance/test_many.c conformance/test_collective_kinds.c \
    conformance/test_transport_fence.c conformance/test_transport_recovery.c fault/test_coordinator_away.c fault/test_recovery_features.c fault/test_recovery_policies.c fault/test_recovery_devices.c fault/test_recovery_kinds.c fault/test_recovery_anysource.c fault/test_recovery_groups.c fault/test_recovery_overtaken.c \
    fault/test_limits.c fault/test_cut_host.sh fault/test_slow_link.sh fault/test_run_hosts.sh fault/test_run_starts.sh fault/test_run_rsh.sh \
    fault/test_run_exit.sh fault/test_run_orphans.sh fault/test_run_private.sh fault/test_run_devices.sh golden/test_doctor.sh \
    golden/test_cpp.sh golden/test_first_trainer.sh golden/test_collectives.sh)
threaded = $(if $(THREADED),$(filter-out $(ONE_THREAD) $(NO_RACES),$(filter \
    $(WITH_THREADS) $(patsubst %,tests/%,conformance/% fault/% golden/%),$(1))),$(1))
raced = $(if $(THREADED),$(filter-out $(NO_RACES),$(1)),$(1))
# A sanitizer finds elsewhere, in less time, what it would find here. These look at places where
# threads wait, at numbers that are the same in every build, at what the machine does, and at our
# scripts. SANITIZED leaves them out.
NO_ADDRESSES := $(patsubst %,tests/%,browser/test_page.sh fault/test_stall_places.c fault/test_stall_hosts.sh fault/test_pauses.sh fault/test_cut_host.sh fault/test_slow_link.sh fault/test_phases.sh \
    fault/test_healthy.c fault/test_two_level_hosts.sh fault/test_address_hosts.sh fault/test_watch_python.sh \
    sim/test_sim_explore.c sim/test_sim_vectors.c conformance/test_reducer_mnist.c conformance/test_reducer_random.c \
    conformance/test_reducer_sums.c \
    conformance/test_progress.c fault/test_recovery_unharmed.c fault/test_coordinator_away.c golden/test_bench.sh golden/test_cpp.sh golden/test_doctor.sh golden/test_exports.sh golden/test_install.sh golden/test_launchers.sh \
    golden/test_mnist.sh golden/test_peers_report.sh golden/test_recovery_demo.sh golden/test_run_tests.sh golden/test_startup.c golden/test_gpu.sh)
addressed = $(if $(SANITIZED),$(filter-out $(NO_ADDRESSES),$(1)),$(1))
# Long programs that make test leaves to the night, unless ONLY names them: no fault of tests/mutants
# needs them, and docs/internals/testing.md says what covers each of them by day.
AT_NIGHT := $(patsubst %,tests/%,fault/test_stall_places.c fault/test_healthy.c conformance/test_reducer_mnist.c)
by_day = $(if $(ONLY),$(1),$(filter-out $(AT_NIGHT),$(1)))
TEST_C := $(call by_day,$(call addressed,$(call threaded,$(call chosen,$(wildcard $(KIND:%=tests/%/test_*.c) $(KIND:%=tests/%/*/test_*.c))))))
TEST_SH := $(call addressed,$(call raced,$(call chosen,$(wildcard $(KIND:%=tests/%/test_*.sh) $(KIND:%=tests/%/*/test_*.sh)))))
TEST_BIN := $(TEST_C:%.c=$(BUILD)/%)

TEST_ENV = BUILD=$(abspath $(BUILD)) LOCKSTEP_TEST_BIN=$(abspath $(BUILD)/bin) \
    LOCKSTEP_TEST_LIB=$(abspath $(BUILD)/lib) CC="$(CC)" LOCKSTEP_TEST_SANITIZER=$(SAN)

.PHONY: test check sim explore model conformance conformance-algorithms recovery recovery-soak coordinator-soak mutants nightly kill healthy asan tsan ubsan lint format demo demo-recovery torch aarch64

# Unit tests and simulations start no program of ours, so for them alone none need link.
NEEDS_PROGRAMS := $(filter-out tests/unit/% tests/sim/%,$(TEST_C) $(TEST_SH))

# Simulated workers, for tests of what many of them look like.
FLEET := $(BUILD)/tests/load/fleet
$(FLEET): $(BUILD)/obj/tests/load/fleet.o $(ARCHIVES)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(LINK) -o $@ -Wl,--start-group $^ -Wl,--end-group $(DAEMON_LIBS)

# --- fuzzers: one for each tests/fuzz/fuzz_*.c ---------------------------------------------------

# Each runs what is in tests/fuzz/seeds, or is driven by libFuzzer, which comes with clang.
FUZZERS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_MAIN := $(if $(LIBFUZZER),,$(BUILD)/obj/tests/fuzz/replay.o)
$(BUILD)/tests/fuzz/fuzz_%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(FUZZ_MAIN) $(BUILD)/obj/cli/trace/trace_file.o \
    $(BUILD)/obj/cli/ask/json_read.o $(ARCHIVES)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(TEST_LINK) $(if $(LIBFUZZER),-fsanitize=fuzzer) -o $@ -Wl,--start-group $^ -Wl,--end-group $(DAEMON_LIBS)

.PHONY: fuzz fuzz-smoke fuzz-seeds fuzzers
fuzzers: $(FUZZERS)
FUZZ_SECONDS ?= 60
fuzz: ## Fuzz every decoder (FUZZ_SECONDS=60 each, ONLY=text narrows it)
	@tools/install-deps tools/deps-fuzz.txt || true
	@$(MAKE) BUILD=$(BUILD)/fuzz CC=clang SAN=address,undefined OPTIMIZE=-O1 LIBFUZZER=1 \
	    CFLAGS=-fsanitize=fuzzer-no-link fuzzers
	@BUILD=$(abspath $(BUILD)/fuzz) FUZZ_SECONDS=$(FUZZ_SECONDS) ONLY=$(ONLY) JOBS=$(JOBS) tools/fuzz
fuzz-smoke: ## The same, 20 seconds each
	@$(MAKE) FUZZ_SECONDS=20 fuzz

fuzz-seeds: $(BUILD)/tests/fuzz/make_seeds ## Write the seeds that our encoders make
	@$(BUILD)/tests/fuzz/make_seeds tests/fuzz/seeds
$(BUILD)/tests/fuzz/make_seeds: $(BUILD)/obj/tests/fuzz/make_seeds.o $(ARCHIVES)
	@mkdir -p $(@D)
	$(Q)$(LINK) -o $@ -Wl,--start-group $^ -Wl,--end-group $(DAEMON_LIBS)

# Many programs open hundreds of sessions. malloc keeps the memory that they free, and the stacks of their
# threads are kept, because the system would have to clear each page again for the next session.
KEEPS_MEMORY := GLIBC_TUNABLES=glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=1073741824:$(strip \
    )glibc.pthread.stack_cache_size=1073741824

# The menu reads one line of each target.
test: ## Build and run all tests (KIND=sim, ONLY=text narrow it; CI=false: no deadline has room)
test: $(if $(NEEDS_PROGRAMS),all) $(if $(filter tests/browser/%,$(TEST_SH)),$(FLEET)) \
    $(if $(filter tests/fuzz/%,$(TEST_SH)),$(if $(THREADED),,$(FUZZERS))) $(TEST_BIN) $(if $(TEST_C),$(FAKES))
	@$(TEST_ENV) $(KEEPS_MEMORY) CI=$(or $(CI),true) tools/run-tests $(TEST_BIN) $(TEST_SH)

check: ## Lint, then test
	@$(MAKE) lint
	@$(MAKE) test

sim: ## Run the simulator with more seeds (SEEDS=n)
	@LOCKSTEP_TEST_SIM_SEEDS=$(SEEDS) $(MAKE) KIND=sim test

EXPLORER := $(BUILD)/tests/sim/test_sim_explore
explore: $(EXPLORER) ## Every interleaving of small worlds (FAMILY=name)
	@LOCKSTEP_TEST_EXPLORE=$(or $(FAMILY),all) $(EXPLORER)

model: ## Check the rules of membership on their model (MODEL="fuzz --seconds 600")
	@python3 -B tests/models/membership $(or $(MODEL),quick)

# --- the numbered cases ---------------------------------------------------------------------------

CASE_BIN := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/conformance/test_*.c tests/fault/test_death*.c \
    tests/fault/test_stall.c))

conformance: all $(CASE_BIN) $(FAKES) ## Run the numbered cases, one line each by transport (CASE=26)
	@CASE=$(CASE) $(TEST_ENV) tools/conformance

conformance-algorithms: all $(CASE_BIN) $(FAKES) ## The conformance tests over every algorithm by name
	@$(TEST_ENV) LOCKSTEP_TEST_ALGORITHMS=all tools/run-tests \
	    $(filter $(BUILD)/tests/conformance/%,$(CASE_BIN))

# A rank dies at every turn of every way of reducing, and others in the repetition.
RECOVERY := $(patsubst %,$(BUILD)/tests/conformance/test_transport_%,recovery fence) $(BUILD)/tests/fault/test_recovery_kinds \
    $(BUILD)/tests/fault/test_coordinator_return
recovery: all $(RECOVERY) $(FAKES) $(BUILD)/tests/soak/recovery ## A rank dies at every turn of every way of reducing, or frame of a collective, and the others finish
	@$(TEST_ENV) LOCKSTEP_TEST_ALGORITHMS=all LOCKSTEP_TEST_LONG_CUT=1 tools/run-tests $(RECOVERY) \
	    tests/fault/test_pauses.sh
	@$(TEST_ENV) $(BUILD)/tests/soak/recovery --one-death-of-both --seconds 60
	@$(TEST_ENV) $(BUILD)/tests/soak/recovery --one-death-of-both --ranks 3 --seconds 60

# One job after the other, whose ranks are killed and stopped at random.
SOAK := $(BUILD)/tests/soak/recovery
whole = $(shell awk 'BEGIN { print int($(1)) }')
SOAK_SECONDS := $(if $(HOURS),$(call whole,$(HOURS) * 3600),$(or $(SECONDS),60))
$(SOAK): $(call objects,tests/soak/*.c) $(call shared,fault) $(ARCHIVES)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(TEST_LINK) -o $@ -Wl,--start-group $^ -Wl,--end-group $(TEST_LIBS)
AWAY := $(BUILD)/tests/fault/test_coordinator_away
coordinator-soak: all $(AWAY) ## The coordinator is killed every 20 steps, for MINUTES (10): step times and diagnosis
	@LOCKSTEP_TEST_TIMEOUT=100000 LOCKSTEP_TEST_AWAY_SECONDS=$(call whole,$(MINUTES) * 60) $(TEST_ENV) $(AWAY)
recovery-soak: all $(SOAK) ## Ranks and the coordinator die and stop at random for HOURS, or SECONDS (60) (SEED=n)
	@$(TEST_ENV) $(SOAK) --seconds $(SOAK_SECONDS) $(if $(SEED),--seed $(SEED))

mutants: ## Break the library on purpose: each fault has to fail its case (CASE=07)
	@CASE=$(CASE) $(TEST_ENV) JOBS=$(JOBS) tools/mutants

# --- longer than anyone waits for ----------------------------------------------------------------

# Every combination, many seeds, deaths and hangs, and deadlines that have no room (CI=false). A list of
# what runs here alone stands in docs/internals/testing.md.
DRAWS ?= 10000
KILLS ?= 1200
HANGS ?= 20
MINUTES ?= 10
MESSAGES ?= 3000
nightly: SEEDS ?= 100000
# make test runs enough of two further programs that count their deaths by KILLS.
NIGHTLY_C := $(filter-out tests/fault/test_death_alone.c tests/fault/test_trace_killed.c, \
    $(wildcard tests/conformance/test_*.c tests/fault/test_*.c tests/sim/test_*.c)) \
    tests/unit/coordinator/test_coordinator_hostile.c
NIGHTLY_BIN := $(NIGHTLY_C:%.c=$(BUILD)/%)

nightly: all $(NIGHTLY_BIN) $(FAKES) ## Every combination, random models, simulator, deaths, hangs, mutants (DRAWS, SEEDS, KILLS, HANGS, MINUTES, MESSAGES)
	@echo 'nightly: $(DRAWS) random models, $(SEEDS) simulator seeds, $(MESSAGES) streams of messages, $(KILLS) deaths,' \
	    '$(HANGS) hangs, $(MINUTES) minutes without one'
	@$(TEST_ENV) CI=false LOCKSTEP_TEST_TIMEOUT=$(or $(LOCKSTEP_TEST_TIMEOUT),7200) \
	    LOCKSTEP_TEST_DRAWS=$(DRAWS) LOCKSTEP_TEST_LARGE=1 LOCKSTEP_TEST_ALGORITHMS=all LOCKSTEP_TEST_SIM_SEEDS=$(SEEDS) \
	    LOCKSTEP_TEST_FUZZ_SEEDS=$(MESSAGES) \
	    LOCKSTEP_TEST_FAULT_ROUNDS=$(KILLS) LOCKSTEP_TEST_PHASES_ROUNDS=$(HANGS) LOCKSTEP_TEST_LONG_CUT=1 \
	    LOCKSTEP_TEST_HEALTHY_MINUTES=$(MINUTES) LOCKSTEP_TEST_EXPLORE=all LOCKSTEP_TEST_LIMITS=all \
	    tools/run-tests $(NIGHTLY_BIN) $(wildcard tests/fault/test_*.sh); code=$$?; \
	    $(MAKE) mutants && exit $$code

# About 170 in each way in which gradients can be reduced; LOCKSTEP_TEST_FAULT_WAY=ring for that one alone.
kill: all $(BUILD)/tests/fault/test_death ## Kill workers at random instants (KILLS)
	@$(TEST_ENV) LOCKSTEP_TEST_FAULT_ROUNDS=$(KILLS) $(BUILD)/tests/fault/test_death

healthy: all $(BUILD)/tests/fault/test_healthy ## Nothing that only looks like a standstill raises an alarm (MINUTES)
	@$(TEST_ENV) LOCKSTEP_TEST_HEALTHY_MINUTES=$(MINUTES) $(BUILD)/tests/fault/test_healthy

# --- the same suite under a sanitizer ------------------------------------------------------------

# Bounds on time are for a release build; tests multiply them by LOCKSTEP_TEST_SLOW. Where
# nothing else is asked for, less is drawn at random: a sanitizer finds in few what it finds in many.
# Its reports need lines, and no types. AddressSanitizer keeps the frames of functions that have returned.
# A thread has 64 KiB for the frames of each size, instead of 1 MiB, so that it touches fewer fresh pages.
FEWER := LOCKSTEP_TEST_SIM_SEEDS=$${LOCKSTEP_TEST_SIM_SEEDS:-250} LOCKSTEP_TEST_FUZZ_SEEDS=$${LOCKSTEP_TEST_FUZZ_SEEDS:-20} \
    LOCKSTEP_TEST_ABORTS=$${LOCKSTEP_TEST_ABORTS:-4}
sanitized = +LOCKSTEP_TEST_SLOW=5 $(FEWER) $(2) $(MAKE) BUILD=$(BUILD)/$(3) KERNELS=$(KERNELS) SAN=$(1) OPTIMIZE=-O1 DEBUG_INFO=-g1 $(4) test

asan: ## Tests under Address-, Leak- and UndefinedBehaviorSanitizer; others when ONLY names them
	@$(call sanitized,address$(comma)undefined,ASAN_OPTIONS=detect_stack_use_after_return=1:max_uar_stack_size_log=16 UBSAN_OPTIONS=print_stacktrace=1,asan,$(if $(ONLY),,SANITIZED=1))
tsan: ## Tests under ThreadSanitizer; those without threads when ONLY names them
	@$(call sanitized,thread,TSAN_OPTIONS="ignore_noninstrumented_modules=1 second_deadlock_stack=1 suppressions=$(CURDIR)/tests/tsan.supp",tsan,$(if $(ONLY),,THREADED=1 SANITIZED=1))
ubsan: ## Tests under UndefinedBehaviorSanitizer
	@$(call sanitized,undefined,UBSAN_OPTIONS=print_stacktrace=1,ubsan)

# --- lint ----------------------------------------------------------------------------------------

lint: $(LIBRARY) ## Include directions, licence lines, format, exported symbols
	@NM=$(NM) CC="$(CC)" tests/lint/run $(if $(LIBRARY),$(SHARED) $(STATIC))

format: ## Rewrite every .c and .h with clang-format, and what is generated from the header
	@tests/lint/sources.py --list-c | xargs -r clang-format -i
	@$(MAKE) header-json

.PHONY: header-json
header-json: ## Write include/lockstep/lockstep.json anew, from lockstep.h
	@CC="$(CC)" tools/header-json
	@tools/python-declarations

# No foreign library is linked, and headers of this machine stand in for those of the other one.
AARCH64_CC ?= aarch64-linux-gnu-gcc
AARCH64_C := $(call sources_below,base protos coordinator server worker cli examples)

aarch64: $(GEN_H) ## Compile every source for aarch64, with warnings as errors
	@command -v $(AARCH64_CC) >/dev/null || \
	    { echo "aarch64: install gcc-aarch64-linux-gnu and libc6-dev-arm64-cross"; exit 1; }
	@for source in $(AARCH64_C); do \
	    $(AARCH64_CC) -std=c11 -D_GNU_SOURCE $(WARNINGS) -Werror -fsyntax-only $(INCLUDES) \
	        -idirafter /usr/include -idirafter /usr/include/$(shell $(CC) -print-multiarch) \
	        $$source || exit 1; done

.PHONY: gpu-abi
gpu-abi: ## Compare our declarations of CUDA and NCCL with NVIDIA's headers (CUDA_INCLUDE, NCCL_INCLUDE)
	@$(TEST_ENV) tools/run-tests tests/unit/worker/test_gpu_abi.sh

.PHONY: bench
bench: all ## Measure the library on this machine (BENCH="--ranks 4")
	@$(BUILD)/bin/lockstep bench $(BENCH)

.PHONY: bench-peers
bench-peers: all ## Measure beside Gloo, OpenMPI, MPICH, PyTorch (BENCH_PEERS="--quick")
	@tools/install-deps bench/peers/deps.txt || true
	@CC="$(CC)" bench/peers/build $(abspath $(BUILD))
	@bench/peers/run.py --build $(abspath $(BUILD)) $(BENCH_PEERS)

.PHONY: browser load
browser: all $(FLEET) ## The page in a real browser; screenshots below build/
	@tools/install-deps tools/deps-browser.txt || true
	@$(MAKE) KIND=browser test

WORKERS ?= 1000
load: all $(FLEET) ## What the coordinator costs with simulated workers (WORKERS=n)
	@$(TEST_ENV) tests/load/load.py $(WORKERS)

# Against the shared library, as trainers are.
ABUSED := $(BUILD)/tests/abuse/trainer
$(ABUSED): $(BUILD)/obj/tests/abuse/trainer.o $(LIBRARY)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(LINK) -o $@ $< -L$(BUILD)/lib -llockstep -Wl,-rpath,'$$ORIGIN/../../lib' -lpthread -lm

.PHONY: abuse
abuse: all $(ABUSED) ## Hostile clients against a coordinator and a job that trains (ONLY=text)
	@$(TEST_ENV) tests/abuse/main.py $(ONLY)

# What no other goal runs, because it needs packages, root, or processors that nobody else uses.
.PHONY: extra
extra: ## Run abuse, launch-test and deploy-test, one after the other
	@failed=; for goal in abuse launch-test deploy-test; do $(MAKE) $$goal || failed="$$failed $$goal"; done; \
	    [ -z "$$failed" ] || echo "extra: failed:$$failed"; [ -z "$$failed" ]

demo: all ## Train the demo on this machine (DEMO="--epochs 3")
	@BUILD=$(abspath $(BUILD)) tools/demo $(DEMO)

demo-recovery: all ## Train while workers are killed, and the others go on
	@BUILD=$(abspath $(BUILD)) tools/demo-recovery

torch: all ## Train with PyTorch, beside DistributedDataParallel (RANKS=n)
	@$(TEST_ENV) tools/torch-smoke
