# SPDX-License-Identifier: Apache-2.0
# Packages of PyPI for a test of launchers; sourced first, while there is a network.

# python_with VARIABLE NAME PACKAGE==VERSION...: $python has the packages. It is the interpreter that
# the variable names, or that of a virtual environment in the build directory, which lasts. The test is
# skipped where pip finds no wheel.
python_with() {
    local variable=$1 folder=${BUILD:-$PWD/build}/venv-$2 log
    shift 2
    python=${!variable:-$folder/bin/python}
    export python
    [ -z "${LOCKSTEP_TEST_INSIDE:-}" ] || return 0
    if [ -z "${!variable:-}" ] && ! has_packages "$@"; then
        log=$(mktemp)
        echo "installing $* in $folder"
        if ! { python3 -m venv "$folder" && "$python" -m pip install --only-binary :all: "$@"; } >"$log" 2>&1; then
            sed 's/^/    /' "$log" | tail -n 5
            rm -f "$log"
            echo "skipped: pip could not install $* for $(python3 --version): no wheel, or no network"
            exit 77
        fi
        rm -f "$log"
    fi
    has_packages "$@" || { echo "skipped: $python does not have $*"; exit 77; }
}

has_packages() {
    "$python" - "$@" 2>/dev/null <<'END'
import sys
from importlib.metadata import version
for package in sys.argv[1:]:
    name, wanted = package.split("==")
    assert version(name).split("+")[0] == wanted
END
}
