# SPDX-License-Identifier: Apache-2.0
# What is installed, and where. tools/install-tree copies it, and takes it away again.

BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
DOCDIR ?= $(PREFIX)/share/doc/lockstep
STRIP ?= strip

MANUALS := $(BUILD)/share/made
# The date in man pages. The same sources make the same pages.
SOURCE_EPOCH := $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null),0)

.PHONY: install uninstall manuals

manuals: $(MANUALS) ## Man pages and completion, from what the programs say with --help
$(MANUALS): tools/from-help $(DAEMON) $(CLI)
	$(say) MAN $(BUILD)/share
	@rm -rf $(@D)
	$(Q)tools/from-help --version $(VERSION) --date $(shell date -u -d @$(SOURCE_EPOCH) +%F) \
	    --out $(@D) $(CLI) $(DAEMON)
	@touch $@

# The tool as it is installed finds the library beside it, wherever both are moved together. The
# loader looks in /usr/lib by itself.
RUNPATH := $(if $(filter /usr/lib /usr/lib/% /lib/%,$(LIBDIR)),,-Wl$(comma)-rpath$(comma)'$$ORIGIN/$(shell \
    realpath -m --relative-to=$(BINDIR) $(LIBDIR))')
INSTALLED_CLI := $(if $(CLI),$(BUILD)/install/lockstep)
$(BUILD)/install/runpath: FORCE
	@mkdir -p $(@D)
	@echo "$(RUNPATH)" | cmp -s - $@ || echo "$(RUNPATH)" > $@
$(BUILD)/install/lockstep: $(CLI_NEEDS) $(BUILD)/install/runpath
	$(say) LD $@
	$(Q)$(call link_cli,$(RUNPATH))

install_tree = DESTDIR='$(DESTDIR)' BINDIR='$(BINDIR)' LIBDIR='$(LIBDIR)' INCLUDEDIR='$(INCLUDEDIR)' \
    MANDIR='$(MANDIR)' DOCDIR='$(DOCDIR)' DATADIR='$(PREFIX)/share' PREFIX='$(PREFIX)' \
    VERSION=$(VERSION) SOVERSION=$(SOVERSION) BUILD=$(BUILD) STRIP=$(STRIP) OBJCOPY=$(OBJCOPY) \
    tools/install-tree

install: all $(MANUALS) $(INSTALLED_CLI) ## Install programs, library, manuals, docs (PREFIX, DESTDIR, LIBDIR)
	@$(install_tree) install $(DAEMON) $(INSTALLED_CLI)

uninstall: ## Remove what install has put there (PREFIX, DESTDIR, LIBDIR as then)
	@$(install_tree) uninstall
