# SPDX-License-Identifier: Apache-2.0
# The entry: it sees to the packages, then mk/build.mk builds, mk/install.mk installs, mk/checks.mk
# tests and lints, and mk/deploy.mk packs.
# `make help` is the menu. Sources are found by wildcard: a new .c file needs no change here.

BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
MAKEFLAGS += --no-print-directory -rR

# `make CC=clang` and CC in the environment both hold; make's own default, cc, does not.
ifneq ($(filter default undefined,$(origin CC)),)
CC := gcc
endif

GOALS := $(or $(MAKECMDGOALS),all)
ifeq ($(filter-out help clean,$(GOALS)),)
PACKAGES_CHECKED := 1
endif

ifndef PACKAGES_CHECKED
# A file below another folder may be there already, and make would say nothing.
ELSEWHERE := $(foreach goal,$(GOALS),$(if $(findstring /,$(goal)),$(filter-out $(BUILD)/%,$(goal))))
ifneq ($(strip $(ELSEWHERE)),)
$(error $(strip $(ELSEWHERE)): nothing is built there, because BUILD is $(BUILD))
endif

# Outer run. Missing packages are installed before the inner run is parsed, because that one asks
# pkg-config. Goals run one after the other, each in parallel inside.
.PHONY: $(GOALS) in-order
$(GOALS): in-order
	@:
in-order:
	@tools/install-deps
	@for goal in $(GOALS); do \
	    $(MAKE) $(if $(findstring --jobserver,$(MAKEFLAGS)),,-j$(JOBS)) PACKAGES_CHECKED=1 \
	        $$goal || exit 1; done
else
.DEFAULT_GOAL := all
include mk/build.mk
include mk/install.mk
include mk/checks.mk
include mk/deploy.mk
include mk/gpu.mk
include mk/python.mk
endif
