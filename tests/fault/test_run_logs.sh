#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `lockstep run --log-dir`: a file for each rank with its bytes as they are, files of earlier tries
# apart, the coordinator's words in a file and on stderr, and one sentence where that is impossible.
. "$(dirname "$0")/run_lib.sh"
logs=$work/new/logs

# is FILE BYTES: the file has exactly these bytes.
is() {
    printf "$2" | cmp -s - "$1" || fail "$1 is not '$2' but: $(head -c 300 "$1" 2>&1 | od -c | head)"
}

# ---- Bytes as they are, and the merged output beside them -----------------------------------------

"$lockstep" run -n 3 --log-dir "$logs" -- sh -c \
    'printf "10%%\r%s\n" $LOCKSTEP_RANK_HINT; sleep 0.1; printf "no end" >&2' >"$work/out" 2>"$work/err"
equal "status" $? 0
for rank in 0 1 2; do
    is "$logs/rank-$rank.log" "10%%\r$rank\nno end"
    has "$work/out" "[$rank] $rank"
    has "$work/err" "[$rank] no end"
done
is "$logs/coordinator.log" ""
equal "files" "$(cd "$logs" && echo *)" "coordinator.log rank-0.log rank-1.log rank-2.log"

# One worker: lines come through without a prefix. A directory that exists is used again.
equal "one worker" "$("$lockstep" run -n 1 --log-dir "$logs" -- echo alone 2>/dev/null)" alone
is "$logs/rank-0.log" "alone\n"

# ---- A job that is started again ------------------------------------------------------------------

"$lockstep" run -n 2 --max-restarts 2 --grace 10s --log-dir "$logs" -- sh -c \
    "echo try; [ \$LOCKSTEP_RANK_HINT = 0 ] || [ -e '$work/third' ] || {
        [ ! -e '$work/second' ] || : >'$work/third'; : >'$work/second'; exit 5; }" >"$work/out" 2>"$work/err"
equal "status of the third try" $? 0
for name in rank-0.log rank-1.restart-1.log rank-0.restart-2.log; do
    is "$logs/$name" "try\n"
done
[ -e "$logs/coordinator.restart-2.log" ] || fail "no file of the third coordinator"

# ---- The coordinator's words ----------------------------------------------------------------------

LOCKSTEP_INSECURE_PLAINTEXT=1 "$lockstep" run -n 2 --log-dir "$logs" --http 203.0.113.1:1 -- true >"$work/out" 2>"$work/err"
equal "status without a coordinator" $? 1
has "$work/err" "203.0.113.1"
has "$work/err" "lockstep run: the coordinator ended with status"
has "$logs/coordinator.log" "203.0.113.1"

# ---- Where no file can be -------------------------------------------------------------------------

: >"$work/file"
"$lockstep" run -n 2 --log-dir "$work/file/logs" -- touch "$work/ran" >"$work/out" 2>"$work/err"
equal "status below a file" $? 2
has "$work/err" "lockstep run: --log-dir $work/file/logs: cannot make the directory $work/file: Not a directory"
mkdir -p "$work/taken/rank-1.log"
"$lockstep" run -n 2 --log-dir "$work/taken" -- touch "$work/ran" >"$work/out" 2>"$work/err"
equal "status of a file that is a directory" $? 1
has "$work/err" "lockstep run: cannot write $work/taken/rank-1.log: Is a directory"
[ ! -e "$work/ran" ] || fail "a worker was started without its file"

# A full disk does not end the job.
if [ -c /dev/full ]; then
    mkdir "$work/full"
    ln -s /dev/full "$work/full/rank-0.log"
    "$lockstep" run -n 2 --log-dir "$work/full" -- echo word >"$work/out" 2>"$work/err"
    equal "status on a full disk" $? 0
    has "$work/out" "[0] word"
    has "$work/err" "lockstep run: cannot write $work/full/rank-0.log: No space left on device; the job goes on"
    is "$work/full/rank-1.log" "word\n"
fi

nothing_left "files of ranks"
finish
