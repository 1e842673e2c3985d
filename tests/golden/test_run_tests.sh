#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# tools/run-tests: what it counts, and what it repeats at its end. A sanitizer's report behind tests
# that have all passed is a failure, and says where it was. A program that passes when it is run
# again, with CI=true, is named and does not fail the run. A log has now and then how far the run
# is. tests/python/run.py treats tests of Python in the same way.
set -eu
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

program() {
    { echo '#!/bin/sh'; cat; } >"$work/$1"
    chmod +x "$work/$1"
}

program test_good <<'END'
echo '[  PASSED  ] 2 test(s).'
END
program test_race <<'END'
echo '[  PASSED  ] 3 test(s).'
echo 'WARNING: ThreadSanitizer: data race (pid=1)'
echo '    #0 writes worker/one.c:7'
echo '    #9 main worker/one.c:9'
exit 66
END
program test_wrong <<'END'
echo '[  ERROR   ] --- 1 != 2'
echo '[  FAILED  ] adds'
echo '[  PASSED  ] 1 test(s).'
echo '[  FAILED  ] 1 test(s), listed below:'
exit 1
END
# As cmocka 1.1.7 writes it.
program test_large <<'END'
echo '[  PASSED  ] 0 test(s).'
echo '[  SKIPPED ] large: of 2 GiB: 2 test(s), listed below:'
END
program test_silent.sh <<'END'
echo 'the last words'
kill -KILL $$
END
program test_absent.sh <<'END'
echo 'no such thing here'
exit 77
END
# Passes from its second run on.
program test_busy <<'END'
if [ -e "${0%/*}/busy" ]; then
    echo '[  PASSED  ] 4 test(s).'
    exit 0
fi
: >"${0%/*}/busy"
echo '[  ERROR   ] --- too late'
echo '[  FAILED  ] waits'
echo '[  PASSED  ] 3 test(s).'
echo '[  FAILED  ] 1 test(s), listed below:'
exit 1
END

fail() {
    cat "$work/output"
    echo "test_run_tests: $1"
    exit 1
}

# expect CI CLOSING < what is repeated at the end but for the closing line, sorted
expect() {
    sort >"$work/expected"
    rm -f "$work/busy"
    code=0
    CI=$1 tools/run-tests "$work"/test_* >"$work/output" || code=$?
    [ "$code" -eq 1 ] || fail "exit code $code"
    tail -n 1 "$work/output" | grep -qx "$2" || fail 'counts'
    sed -n '/^\(FAILED\|UNSTEADY\) /,$p' "$work/output" | sed '$d' | sort >"$work/repeated"
    cmp -s "$work/repeated" "$work/expected" || fail "$(diff "$work/expected" "$work/repeated")"
}

name=$(basename "$work")
failed="FAILED $name/test_race: exit code 66
  WARNING: ThreadSanitizer: data race (pid=1)
  #0 writes worker/one.c:7
FAILED $name/test_silent.sh: killed by SIGKILL
  the last words
FAILED $name/test_wrong: exit code 1
  [  ERROR   ] --- 1 != 2
  [  FAILED  ] adds"
busy="$name/test_busy: exit code 1
  [  ERROR   ] --- too late
  [  FAILED  ] waits"
expect false '9 passed, 4 failed, 3 skipped' <<END
$failed
FAILED $busy
END

# Only checks that failed get a second try.
expect true '10 passed, 3 failed, 3 skipped' <<END
$failed
UNSTEADY $busy
END
for program in test_race test_silent.sh; do
    [ "$(grep -c "^  FAIL $name/$program " "$work/output")" -eq 1 ] || fail "$program ran twice"
done
[ "$(grep -c "^  FAIL $name/test_wrong " "$work/output")" -eq 2 ] || fail 'test_wrong did not run again'

# How far a run is: programs that are done, of how many, the time, and what runs.
program test_slow <<'END'
sleep 1
echo '[  PASSED  ] 1 test(s).'
END
LOCKSTEP_TEST_PROGRESS_S=0.2 tools/run-tests "$work/test_good" "$work/test_slow" >"$work/output" 2>&1 || fail 'exit code'
grep -q '^\[1/2\] 0:0[0-9] of about 0:0[0-9]: test_slow$' "$work/output" || fail 'no line of progress'

# Tests of Python. Of three whose checks fail, two pass when they run again. A crash and a hang do not run again.
mkdir -p "$work/tree/tools" "$work/tree/tests/python"
cp tools/run-tests "$work/tree/tools"
cp tests/python/run.py "$work/tree/tests/python"
cat >"$work/tree/tests/python/test_tries.py" <<'END'
import os
import subprocess
import unittest

tries = {}


class Tries(unittest.TestCase):
    side_by_side = True

    def of(self, name):
        tries[name] = tries.get(name, 0) + 1
        return tries[name]

    def test_busy(self):
        self.assertEqual(self.of("busy"), 2)

    def test_busy_part(self):
        for part in "ab":
            with self.subTest(part=part):
                self.assertGreater(self.of(part), part == "b")

    def test_crash(self):
        self.assertGreater(self.of("crash"), 1, "code -11\nits output")

    def test_good(self):
        pass

    def test_hang(self):
        if self.of("hang") == 1:
            subprocess.run(["sleep", "9"], timeout=0.1, check=True)

    def test_wrong(self):
        self.assertTrue(False, f"{self.of('wrong')}. try")
END
# of_python CI CLOSING < the names that are repeated at the end, sorted
of_python() {
    cat >"$work/expected"
    code=0
    ONLY= CI=$1 python3 -B "$work/tree/tests/python/run.py" >"$work/output" 2>&1 || code=$?
    [ "$code" -eq 1 ] || fail "exit code $code"
    tail -n 1 "$work/output" | grep -qx "$2" || fail 'counts of Python'
    sed -n 's/^\(FAILED\|UNSTEADY\) test_tries.Tries.\([^:]*\):.*/\1 \2/p' "$work/output" | sort >"$work/repeated"
    cmp -s "$work/repeated" "$work/expected" || fail "$(diff "$work/expected" "$work/repeated")"
}
of_python false '1 passed, 5 failed, 0 skipped' <<'END'
FAILED test_busy
FAILED test_busy_part (part='b')
FAILED test_crash
FAILED test_hang
FAILED test_wrong
END
of_python true '3 passed, 3 failed, 0 skipped' <<'END'
FAILED test_crash
FAILED test_hang
FAILED test_wrong
UNSTEADY test_busy
UNSTEADY test_busy_part (part='b')
END
grep -q '^FAILED .*test_wrong: AssertionError: False is not true : 2. try$' "$work/output" || fail 'test_wrong did not run again'
