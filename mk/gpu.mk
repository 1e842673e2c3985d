# SPDX-License-Identifier: Apache-2.0
# Programs that need a GPU to measure anything. Everything here builds without one, and says that it
# is missing.

GPU_C := $(filter-out tests/gpu/gpu.c tests/gpu/shared_gpu.c,$(wildcard tests/gpu/*.c))
GPU_BIN := $(GPU_C:%.c=$(BUILD)/%)
GPU_O := $(BUILD)/obj/tests/gpu/gpu.o

$(GPU_BIN): $(BUILD)/%: $(BUILD)/obj/%.o $(GPU_O) $(SUPPORT) $(ARCHIVES)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(LINK) -o $@ -Wl,--start-group $^ -Wl,--end-group $(TEST_LIBS)

# The real driver, whose GPU seems to be eight (tests/gpu/shared_gpu.c). It names the driver as a
# library that it needs, so an empty library of that name takes the driver's place in the link.
SHARED_GPU := $(BUILD)/tests/gpu/libcuda-shared.so
$(SHARED_GPU): $(BUILD)/obj/tests/gpu/shared_gpu.o $(call lib,base)
	$(say) LD $@
	@mkdir -p $(@D)/empty
	$(Q)$(LINK) -shared -o $(@D)/empty/libcuda.so.1 -Wl,-soname,libcuda.so.1
	$(Q)$(LINK) -shared -o $@ -Wl,-soname,$(@F) -Wl,--exclude-libs,ALL $^ -Wl,--no-as-needed \
	    $(@D)/empty/libcuda.so.1 -ldl -lpthread

# They are tried on a stand-in in every run of the tests, so that they are there when a GPU is.
$(if $(filter tests/golden/test_gpu.sh,$(TEST_SH)),test: $(GPU_BIN) $(SHARED_GPU) $(FAKES))

# A trainer as a user of CUDA's runtime API would write it: against the shared library and the
# public header. Products and sums of its optimizer are not fused, as they are not on a CPU, so that
# parameters stay equal on all ranks of a job with both.
GPU_TRAINERS := $(if $(NVCC),$(patsubst %.cu,$(BUILD)/%,$(wildcard examples/gpu/*.cu)))
$(GPU_TRAINERS): $(BUILD)/%: %.cu $(LIBRARY)
	$(say) NVCC $@
	@mkdir -p $(@D)
	$(Q)$(NVCC) -std=c++17 -O2 --fmad=false -Iinclude $(NVCC_TARGETS_FLAGS) -o $@ $< \
	    -L$(BUILD)/lib -llockstep -Xlinker -rpath,'$$ORIGIN/../../lib'

# Conformance programs that know of settings with devices (tests/gpu/test_conformance.sh).
GPU_CONFORMANCE = $(patsubst %.c,$(BUILD)/%,$(shell grep -lE 'stamp_run|device_stories_run|kinds_on_devices' \
    tests/conformance/test_*.c))

.PHONY: gpu-test gpu-bench gpu-conformance
GPU_RECOVERY := $(patsubst %,$(BUILD)/tests/fault/test_recovery_%,devices plain kinds)
gpu-test: all $(GPU_BIN) $(GPU_TRAINERS) $(SHARED_GPU) $(FAKES) $(GPU_RECOVERY) ## Kernels, jobs and a trainer on this machine's GPU
	@$(TEST_ENV) tests/gpu/run test
gpu-bench: all $(GPU_BIN) ## How fast kernels and jobs are on this machine's GPU
	@$(TEST_ENV) tests/gpu/run bench
gpu-conformance: all $(SHARED_GPU) ## The conformance programs on this machine's GPU
	@$(MAKE) PACKAGES_CHECKED=1 $(GPU_CONFORMANCE)
	@$(TEST_ENV) tests/gpu/run conformance
