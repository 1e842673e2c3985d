# SPDX-License-Identifier: Apache-2.0
# Packages, and the test of what is in deploy/.

.PHONY: deb deploy-test images-test launch-test pic reproducible sbom

pic: ## abseil and RE2 to link inside of liblockstep, from the distribution's source packages
	@BUILD=$(dir $(abspath $(PIC))) JOBS=$(JOBS) tools/pic-archives

reproducible: all ## Build again in another path, and compare the bytes
	@BUILD=$(abspath $(BUILD)) VERSION=$(VERSION) CC="$(CC)" JOBS=$(JOBS) tools/reproducible

deb: all ## Debian packages, in build/deb
	@tools/install-deps tools/deps-deb.txt || true
	@BUILD=$(abspath $(BUILD)) VERSION=$(VERSION) SOVERSION=$(SOVERSION) tools/make-deb

sbom: all ## Bill of materials (SPDX), in build/sbom
	@SOURCE_DATE_EPOCH=$(SOURCE_EPOCH) tools/sbom $(VERSION) $(BUILD) $(BUILD)/sbom/lockstep.spdx.json

launch-test: all ## Start workers by mpirun, Slurm, torchrun and Ray, and by lockstep run on several hosts, for real
	@tools/install-deps tools/deps-launch.txt || true
	@$(TEST_ENV) LOCKSTEP_TEST_TIMEOUT_test_torchrun=1200 LOCKSTEP_TEST_TIMEOUT_test_ray=1200 tools/run-tests $(wildcard tests/launch/test_*.sh) tests/fault/test_run_hosts.sh

deploy-test: all ## Manifests, images, rules and dashboard: rendered, validated, and run
	@tools/install-deps tools/deps-deploy.txt || true
	@$(MAKE) deb
	@BUILD=$(abspath $(BUILD)) tests/deploy/run $(ONLY)

images-test: all ## Build the container images without a registry, and train MNIST in one (root)
	@tools/install-deps tools/deps-images.txt || true
	@$(MAKE) deb
	@BUILD=$(abspath $(BUILD)) tests/deploy/build_images
