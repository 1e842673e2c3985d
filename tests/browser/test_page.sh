#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The page in a real browser, with a coordinator and simulated workers. Skipped where there is no
# Chromium: tools/install-deps tools/deps-browser.txt
set -euo pipefail
exec python3 "$(dirname "$0")/page.py"
