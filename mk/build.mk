# SPDX-License-Identifier: Apache-2.0
# From sources to programs and liblockstep. Installing is in install.mk, testing in checks.mk.

VERSION := 0.1.0
SOVERSION := 0

PROTOC ?= protoc
PROTOC_GEN_NANOPB ?= /usr/bin/protoc-gen-nanopb
OBJCOPY ?= objcopy
AR ?= ar
NM ?= nm

# Only the kernels for GPUs need it; without one (or with NVCC=) they are left out.
ifeq ($(origin NVCC),undefined)
NVCC := $(or $(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc))
endif
# Machine code for each of these capabilities that nvcc knows, and for newer ones PTX of the first.
ifeq ($(origin NVCC_TARGETS),undefined)
NVCC_KNOWS := $(if $(NVCC),$(patsubst compute_%,%,$(shell $(NVCC) --list-gpu-arch 2>/dev/null)))
NVCC_TARGETS := $(or $(filter $(NVCC_KNOWS),80 90 100),80 90 100)
endif

comma := ,

ifdef V
Q :=
say = @:
else
Q := @
say = @printf '  %-5s %s\n'
endif

# --- flags ---------------------------------------------------------------------------------------

WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes \
    -Wmissing-prototypes -Wswitch-enum -Wvla $(if $(WERROR),-Werror)
# Debian 12 has the headers of nanopb in /usr/include, and Ubuntu 24.04 in a folder of their own.
INCLUDES := -Iinclude -I. -I$(BUILD)/gen $(addprefix -isystem ,$(wildcard /usr/include/nanopb))
OPTIMIZE ?= -O2
# A sanitizer is about the same lines at any level, and higher ones take long to compile.
OPTIMIZE_KERNELS ?= $(if $(SAN),$(OPTIMIZE),-O3)
OPTIMIZE_TESTS ?= -O1
DEBUG_INFO ?= -g
CFLAGS ?=
LDFLAGS ?=
SANITIZE := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer)
SANITIZE += $(if $(findstring undefined,$(SAN)),-fno-sanitize-recover=all)
# No path of the machine that builds gets into what is built: another path makes the same bytes.
PATHS := -ffile-prefix-map=$(CURDIR)=. $(if $(filter /%,$(BUILD)),-ffile-prefix-map=$(BUILD)=build)
# An initializer of a message clears all of its union. From gcc 15 on this has to be asked for.
CLEAR := $(shell $(CC) -fzero-init-padding-bits=unions -E -x c /dev/null >/dev/null 2>&1 && \
    echo -fzero-init-padding-bits=unions)
BASE_FLAGS := -std=c11 -D_GNU_SOURCE $(OPTIMIZE) $(DEBUG_INFO) -fPIC -fvisibility=hidden -pthread \
    $(CLEAR) $(PATHS) $(INCLUDES) $(SANITIZE)
LINK := $(CC) -pthread $(SANITIZE) $(LDFLAGS) -Wl,--as-needed

# Generated files are not ours to tidy, and the kernels are worth another level. Tests take more time to
# be compiled than to run.
FLAGS_FOR = $(if $(filter $(BUILD)/gen/%,$<),-Wall,$(WARNINGS)) \
    $(if $(filter worker/kernels/%,$<),$(OPTIMIZE_KERNELS)) $(if $(filter tests/%,$<),$(FLAGS_FOR_TEST)) \
    $(if $(filter worker/device/image.c,$<),-Wa$(comma)-I$(KERNELS))
COMPILE = $(CC) $(BASE_FLAGS) $(FLAGS_FOR) $(CFLAGS) -MMD -MP -c $< -o $@

# --- what there is -------------------------------------------------------------------------------

PROTO := $(wildcard protos/*.proto)
GEN_C := $(PROTO:%.proto=$(BUILD)/gen/%.pb.c)
GEN_H := $(GEN_C:.c=.h)
objects = $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard $(1)))
# Sources of a folder and of the folders in it.
sources_below = $(foreach files,/*.c /*/*.c /*/*/*.c,$(wildcard $(addsuffix $(files),$(1))))
objects_below = $(patsubst %.c,$(BUILD)/obj/%.o,$(call sources_below,$(1)))

BASE_O := $(call objects,base/*.c)
PROTOS_O := $(call objects_below,protos) $(PROTO:%.proto=$(BUILD)/obj/gen/%.pb.o)
COORDINATOR_O := $(call objects_below,coordinator)
SERVER_O := $(filter-out %/main.o,$(call objects_below,server))
WORKER_O := $(call objects_below,worker)
CLI_O := $(call objects_below,cli)
PROGRAM_O := $(call objects,examples/*.c bench/*.c)

lib = $(BUILD)/lib/$(1).a
SHARED := $(BUILD)/lib/liblockstep.so.$(VERSION)
STATIC := $(BUILD)/lib/liblockstep.a
# The worker's public functions need worker sources; without any there is no library to build.
LIBRARY := $(if $(WORKER_O),$(SHARED) $(STATIC) $(BUILD)/lib/pkgconfig/lockstep.pc)
DAEMON := $(if $(wildcard server/main.c),$(BUILD)/bin/lockstep-coordinator)
CLI := $(if $(wildcard cli/main.c),$(BUILD)/bin/lockstep)
PROGRAMS := $(if $(LIBRARY),$(patsubst %.c,$(BUILD)/%,$(wildcard examples/*.c bench/*.c)))
ARCHIVES := $(foreach name,base protos coordinator server worker,$(call lib,$(name)))

.PHONY: all clean help
.DELETE_ON_ERROR:
.SECONDARY:

all: $(ARCHIVES) $(LIBRARY) $(DAEMON) $(CLI) $(PROGRAMS) ## Build everything

# --- stamps: rebuild when the commands or the set of files change, not only when a file does -----

$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(BASE_FLAGS) $(WARNINGS) $(CFLAGS) $(LDFLAGS)' | cmp -s - $@ || \
	    echo '$(CC) $(BASE_FLAGS) $(WARNINGS) $(CFLAGS) $(LDFLAGS)' > $@
$(BUILD)/files: FORCE
	@mkdir -p $(@D)
	@echo '$(BASE_O) $(PROTOS_O) $(COORDINATOR_O) $(SERVER_O) $(WORKER_O) $(CLI_O) $(PIC_LIBS)' | \
	    cmp -s - $@ || \
	    echo '$(BASE_O) $(PROTOS_O) $(COORDINATOR_O) $(SERVER_O) $(WORKER_O) $(CLI_O) $(PIC_LIBS)' > $@
.PHONY: FORCE

# --- compile -------------------------------------------------------------------------------------

# Without --options-path nanopb would ignore the .options files and say nothing.
$(BUILD)/gen/protos/%.pb.c $(BUILD)/gen/protos/%.pb.h &: protos/%.proto $(PROTO) \
    $(wildcard protos/*.options)
	$(say) PROTO $<
	@mkdir -p $(BUILD)/gen/protos
	$(Q)$(PROTOC) -Iprotos --plugin=protoc-gen-nanopb=$(PROTOC_GEN_NANOPB) \
	    --nanopb_opt=--options-path=protos --nanopb_opt=--error-on-unmatched \
	    --nanopb_opt=--quiet --nanopb_out=$(BUILD)/gen/protos $*.proto

$(BUILD)/obj/gen/%.o: $(BUILD)/gen/%.c $(BUILD)/flags | $(GEN_H)
	$(say) CC $<
	@mkdir -p $(@D)
	$(Q)$(COMPILE)

$(BUILD)/obj/%.o: %.c $(BUILD)/flags | $(GEN_H)
	$(say) CC $<
	@mkdir -p $(@D)
	$(Q)$(COMPILE)

# The assembler takes these in, which no compiler's list of includes tells.
$(BUILD)/obj/server/http/page.o: $(wildcard server/page/*)

# --- kernels for GPUs ----------------------------------------------------------------------------

# Sanitizer builds share the release build's, because nvcc takes long. Code that rounds is not to be
# contracted, flushed or approximated (docs/numbers.md). Not compressed: older drivers cannot read
# all that newer ones can. Registers that do not suffice would cost bandwidth. Without nvcc both files
# are empty.
KERNELS ?= $(BUILD)/kernels
FATBIN := $(KERNELS)/device_kernels.fatbin
KERNELS_CU := $(wildcard worker/device/kernels.cu)
KERNELS_PTX := compute_$(firstword $(NVCC_TARGETS))
KERNELS_FOR := $(if $(and $(NVCC),$(KERNELS_CU)),$(NVCC_TARGETS:%=sm_%) $(KERNELS_PTX))
NVCC_TARGETS_FLAGS := -gencode arch=$(KERNELS_PTX)$(comma)code=$(KERNELS_PTX) \
    $(foreach target,$(NVCC_TARGETS),-gencode arch=compute_$(target)$(comma)code=sm_$(target))
NVCC_FLAGS := -std=c++17 -O3 -Xptxas -warn-spills -I. \
    --no-compress --fmad=false --ftz=false --prec-div=true --prec-sqrt=true $(NVCC_TARGETS_FLAGS)
COMPILE_KERNELS := $(if $(KERNELS_FOR),$(NVCC) -fatbin $(NVCC_FLAGS))

$(KERNELS)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(COMPILE_KERNELS)' | cmp -s - $@ || echo '$(COMPILE_KERNELS)' > $@

$(FATBIN): $(KERNELS_CU) worker/device/formats.cuh worker/device/kernels.h $(KERNELS)/flags
	$(if $(KERNELS_FOR),$(say) NVCC $<)
	$(Q)$(if $(KERNELS_FOR),$(COMPILE_KERNELS) $(if $(WERROR),--Werror all-warnings) $< -o,: >) $@
	@printf '%s' '$(KERNELS_FOR)' > $(KERNELS)/device_kernels.targets

$(BUILD)/obj/worker/device/image.o: $(FATBIN)

$(call lib,base): $(BASE_O)
$(call lib,protos): $(PROTOS_O)
$(call lib,coordinator): $(COORDINATOR_O)
$(call lib,server): $(SERVER_O)
$(call lib,worker): $(WORKER_O)
# Several folders have a file of one name: q appends them all, where r may replace one by another.
$(ARCHIVES): $(BUILD)/files
	$(say) AR $@
	@mkdir -p $(@D)
	@rm -f $@
	$(Q)$(AR) qcs $@ $(filter %.o,$^)

# --- liblockstep ---------------------------------------------------------------------------------

NANOPB := -l:libprotobuf-nanopb.a
SYSTEM := -lssl -lcrypto -ldl -lpthread -lm

# gRPC's four archives go inside, hidden, so that a trainer's own gRPC never meets ours. The
# distribution's archives of abseil and RE2 are compiled for programs and do not fit into a library:
# `make pic` makes some that do, and without them the shared ones are linked. A sanitizer build takes
# the shared gRPC, because ThreadSanitizer can only ignore code in a library of its own.
PIC ?= build/pic
PIC_LIBS := $(if $(wildcard $(PIC)/libre2.a),$(PIC)/libabsl.a $(PIC)/libre2.a)
ABSL = $(sort $(filter -labsl_%,$(shell pkg-config --static --libs-only-l grpc)))
GRPC_ARCHIVES := -lgrpc -lgpr -lupb -laddress_sorting
BELOW_GRPC := -lcares -lz -lstdc++
# inside ARCHIVES...: these, with all that they need of each other.
inside = -Wl,-Bstatic -Wl,--start-group $(GRPC_ARCHIVES) $(1) -Wl,--end-group -Wl,-Bdynamic
ifdef SAN
GRPC_INSIDE := -lgrpc -lgpr
GRPC_OF_DAEMON := -lgrpc -lgpr
CLOSED :=
else
GRPC_INSIDE = $(call inside,$(PIC_LIBS)) \
    $(if $(PIC_LIBS),,$(sort $(filter -labsl_%,$(shell pkg-config --libs-only-l grpc))) -lre2) $(BELOW_GRPC)
# At the start of the daemon the loader looks each name up in library after library. So OpenSSL, which has
# most names, comes first, and libstdc++ goes inside where its archive is installed.
CXX_INSIDE = $(if $(filter /%,$(shell $(CC) -print-file-name=libstdc++.a)),-l:libstdc++.a -static-libgcc,-lstdc++)
GRPC_OF_DAEMON = $(call inside,$(ABSL) -lre2) -lssl -lcrypto $(filter-out -lstdc++,$(BELOW_GRPC)) $(CXX_INSIDE)
CLOSED := -Wl,-z,defs
endif

$(SHARED): $(WORKER_O) $(call lib,protos) $(call lib,base) worker/api/liblockstep.map $(BUILD)/files \
    $(if $(SAN),,$(PIC_LIBS))
	$(say) LD $@
	$(Q)$(LINK) -shared -o $@ $(CLOSED) -Wl,-soname,liblockstep.so.$(SOVERSION) \
	    -Wl,--version-script=worker/api/liblockstep.map -Wl,--exclude-libs,ALL -Wl,-z,nodelete \
	    $(filter-out $(PIC_LIBS),$(filter %.o %.a,$^)) $(NANOPB) $(GRPC_INSIDE) $(SYSTEM)
	@ln -sf $(@F) $(@D)/liblockstep.so.$(SOVERSION)
	@ln -sf liblockstep.so.$(SOVERSION) $(@D)/liblockstep.so

# One relocatable object with nanopb inside; everything but the public names becomes local.
$(STATIC): $(WORKER_O) $(call lib,protos) $(call lib,base) $(BUILD)/files
	$(say) AR $@
	$(Q)$(CC) -nostdlib -r -o $(BUILD)/lib/lockstep.o $(WORKER_O) -Wl,--whole-archive \
	    $(call lib,protos) $(call lib,base) $(NANOPB) -Wl,--no-whole-archive
	$(Q)$(OBJCOPY) --wildcard --keep-global-symbol='lockstep_*' $(BUILD)/lib/lockstep.o
	@rm -f $@
	$(Q)$(AR) rcs $@ $(BUILD)/lib/lockstep.o

pc = sed -e 's|@PREFIX@|$(1)|' -e 's|@LIBDIR@|$(2)|' -e 's|@INCLUDEDIR@|$(3)|' \
    -e 's|@VERSION@|$(VERSION)|' lockstep.pc.in
$(BUILD)/lib/pkgconfig/lockstep.pc: lockstep.pc.in mk/build.mk
	@mkdir -p $(@D)
	@$(call pc,$(CURDIR),$(abspath $(BUILD)/lib),$(CURDIR)/include) > $@

# --- programs ------------------------------------------------------------------------------------

LIBEVENT := -levent -levent_pthreads -levent_openssl
# For tests, which are many; the daemon has gRPC inside, as the library has.
DAEMON_LIBS := $(NANOPB) -lgrpc -lgpr $(LIBEVENT) $(SYSTEM)
HERE_LIB := -L$(BUILD)/lib -llockstep -Wl,-rpath,'$$ORIGIN/../lib'

$(BUILD)/bin/lockstep-coordinator: $(BUILD)/obj/server/main.o $(call lib,server) \
    $(call lib,coordinator) $(call lib,protos) $(call lib,base)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(LINK) -o $@ -Wl,--start-group $^ -Wl,--end-group $(NANOPB) $(GRPC_OF_DAEMON) $(LIBEVENT) $(SYSTEM)

# Against the shared library and the public header, so that the tool proves both.
CLI_NEEDS := $(CLI_O) $(call lib,protos) $(call lib,base) $(LIBRARY) $(BUILD)/files
link_cli = $(LINK) -o $@ $(filter %.o,$^) $(call lib,protos) $(call lib,base) $(NANOPB) \
    $(if $(LIBRARY),-L$(BUILD)/lib -llockstep $(1)) $(SYSTEM)
$(BUILD)/bin/lockstep: $(CLI_NEEDS)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(call link_cli,-Wl$(comma)-rpath$(comma)'$$ORIGIN/../lib')

$(PROGRAMS): $(BUILD)/%: $(BUILD)/obj/%.o $(LIBRARY)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(LINK) -o $@ $< $(HERE_LIB) -lpthread -lm

clean: ## Remove the build directory
	rm -rf $(BUILD)

help: ## Show this menu
	@echo 'Targets:'
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1@\2/p' mk/build.mk mk/install.mk mk/checks.mk mk/deploy.mk mk/gpu.mk mk/python.mk | \
	    while IFS=@ read -r name what; do printf '  %-22s %s\n' "$$name" "$$what"; done
	@echo 'Variables: CC=clang BUILD=dir NVCC=file V=1 WERROR=1 JOBS=n KIND=sim ONLY=text CASE=n SEEDS=n'

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
