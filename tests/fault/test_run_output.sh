#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The output of workers comes out whole: lines are not torn or lost, memory is bounded, a slow or
# gone reader does no harm.
. "$(dirname "$0")/run_lib.sh"

# Lines of many lengths from eight ranks at once.
"$lockstep" run -n 8 -- python3 -c '
import os, sys
rank = os.environ["LOCKSTEP_RANK_HINT"]
for i in range(2000):
    text = "line %d of %s " % (i, rank) + "x" * (i * 7 % 3000) + " end\n"
    (sys.stderr if i % 5 == 0 else sys.stdout).write(text)
    if i % 97 == 0: sys.stdout.flush()
sys.stdout.write("last of " + rank)
' >"$work/out" 2>"$work/err" || fail "status $?"
python3 - "$work/out" "$work/err" <<'END' || fail "lines"
import re, sys
lines = open(sys.argv[1]).read().split("\n")
assert lines.pop() == ""
for name, want in ((sys.argv[1], lambda i: i % 5), (sys.argv[2], lambda i: not i % 5)):
    seen = {rank: [] for rank in range(8)}
    for line in open(name):
        if line.startswith("lockstep run:") or re.fullmatch(r"\[(\d)\] last of \1\n", line):
            continue
        match = re.fullmatch(r"\[(\d)\] line (\d+) of (\d) (x*) end\n", line)
        assert match and match[1] == match[3], line[:200]
        number = int(match[2])
        assert len(match[4]) == number * 7 % 3000
        seen[int(match[1])].append(number)
    for rank in range(8):
        assert seen[rank] == [i for i in range(2000) if want(i)], (name, rank)
assert sum("last of" in line for line in lines) == 8
END

# 100 MB pass through a bounded launcher, with one line of 10 MB among them.
cat >"$work/spam" <<'END'
#!/bin/sh
if [ "$LOCKSTEP_RANK_HINT" = 0 ]; then head -c 10000000 /dev/zero | tr '\0' y; echo; fi
yes "a line of this rank, as long as lines are in logs" | head -c 45000000
if [ "$LOCKSTEP_RANK_HINT" = 1 ]; then
    supervisor=$(ps -o ppid= -p $$ | tr -d ' ')
    grep VmHWM "/proc/$supervisor/status" >&2
fi
END
chmod +x "$work/spam"
size=$("$lockstep" run -n 2 "$work/spam" 2>"$work/err" | wc -c)
[ "$size" -ge 100000000 ] || fail "only $size bytes came out"
peak_kb=$(grep VmHWM "$work/err" | tr -dc '0-9 ' | awk '{print $2}')
[ -n "${LOCKSTEP_TEST_SANITIZER:-}" ] || [ "${peak_kb:-999999}" -le 20000 ] ||
    fail "the supervisor took ${peak_kb} kB"

# Raw with one worker, and no prefix when asked for.
equal "one worker" "$("$lockstep" run -n 1 -- printf 'a\rb' 2>/dev/null)" "$(printf 'a\rb')"
equal "one worker and an object" \
    "$("$lockstep" run -n 1 --json -- printf abc 2>/dev/null | cut -c1-6)" "$(printf 'abc\n{"job"')"
equal "no prefix" "$("$lockstep" run -n 2 --no-prefix -- echo hi 2>/dev/null)" "$(printf 'hi\nhi')"

# A line of the greatest length is followed by no empty one, and a longer one is cut.
for bytes in 65535:1 65536:1 65537:2; do
    equal "lines of ${bytes%:*} bytes" "$("$lockstep" run -n 2 -- sh -c \
        "[ \$LOCKSTEP_RANK_HINT = 1 ] || { head -c ${bytes%:*} /dev/zero | tr '\\0' y; echo; }" 2>/dev/null | wc -l)" "${bytes#*:}"
done

# A carriage return starts the line again; before a newline it is part of the line's end.
equal "progress" "$("$lockstep" run -n 2 --no-prefix -- sh -c \
    'test $LOCKSTEP_RANK_HINT = 1 || printf "10%%\r50%%\r100%%\nwin\r\n"' 2>/dev/null)" \
    "$(printf '100%%\nwin')"

# On a terminal rank 0's progress stays the last line on the screen and steps aside for others. Each
# says more when what came before is on the screen.
python3 - "$lockstep" "$work" <<'END' >/dev/null || fail "progress on a terminal"
import os, pty, sys
code = r'''
sees() { until [ -e $0/$1 ]; do sleep 0.02; done; }
if [ $LOCKSTEP_RANK_HINT = 0 ]; then printf "10%%"; printf "\r50%%"; sees aside; printf "\r99%%"; echo
else sees progress; echo other; fi'''
shown = {b"[0] 50%": "progress", b"[1] other\r\n[0] 50%": "aside"}
read = b""
def collect(fd):
    global read
    data = os.read(fd, 65536)
    read += data
    for text, file in shown.items():
        if text in read:
            open(os.path.join(sys.argv[2], file), "w").close()
    return data
os.environ["NO_COLOR"] = "1"
status = pty.spawn([sys.argv[1], "run", "-n", "2", "--", "sh", "-c", code, sys.argv[2]], collect)
assert status == 0, status
text = read.decode().replace("\r\n", "\n")
assert "[0] 50%\r\x1b[K[1] other\n[0] 50%" in text, repr(text)
assert text.partition("\nlockstep run: ranks 0 and 1 ended")[0].endswith("[0] 99%"), repr(text)
END

# A reader that goes away ends the run as it would end the workers.
began=$(now_ms)
"$lockstep" run -n 2 -- sh -c 'while echo line; do :; done' 2>/dev/null </dev/null | head -n 5 >"$work/out"
equal "lines before the reader went" "$(wc -l <"$work/out")" 5
within 3000 "$began" "the end after the reader went"

# A standard output or standard error that cannot be written loses output, and does not end the job.
say='echo "line $LOCKSTEP_RANK_HINT"; echo "word $LOCKSTEP_RANK_HINT" >&2; sleep 0.3; echo later; echo later >&2'
# still WHAT ERROR BYTES
still() {
    equal "status with $1" $? 0
    has "$work/err" "lockstep run: cannot write to standard output: $2; the job goes on, and output is lost"
    has "$work/err" "lockstep run: $3 bytes of standard output were lost: $2"
    equal "$1: said once" "$(grep -c "cannot write" "$work/err")" 1
    for rank in 0 1; do has "$work/err" "[$rank] later"; done
}
if [ -c /dev/full ]; then
    "$lockstep" run -n 2 -- sh -c "$say" >/dev/full 2>"$work/err"
    still "a full disk" "No space left on device" 42
    "$lockstep" run -n 2 -- sh -c "$say" >"$work/out" 2>/dev/full
    equal "status with a full disk behind standard error" $? 0
    for rank in 0 1; do has "$work/out" "[$rank] later"; done
    # The object of --json cannot be written, either: the status says so, and the job is not repeated.
    "$lockstep" run -n 2 --json --max-restarts 1 -- true >/dev/full 2>"$work/err"
    equal "status without the object" $? 1
    has "$work/err" "lockstep run: cannot write to standard output: No space left on device"
    ! grep -q "restart 1" "$work/err" || fail "a job that ended well was started again"
    "$lockstep" bench --ranks 2 --sizes 4 --iterations 1 --json >/dev/full 2>"$work/err"
    equal "status of a bench without output" $? 1
    has "$work/err" "lockstep bench: cannot write to standard output: No space left on device"
fi
# Closed descriptors do not become pipes of the launcher.
"$lockstep" run -n 2 -- sh -c "$say" <&- >&- 2>"$work/err"
still "closed descriptors" "Bad file descriptor" 42
# Nor files of the coordinator. gRPC opens one before main, and never uses it: it gets number 0.
"${lockstep%/*}/lockstep-coordinator" --listen 127.0.0.1:0 --http off --port-file "$work/port" \
    <&- >&- 2>&- &
coordinator=$!
wait_for "$work/port"
for fd in 1 2; do equal "descriptor $fd" "$(readlink /proc/$coordinator/fd/$fd)" /dev/null; done
kill "$coordinator"
wait "$coordinator" || true

# Output goes on when there is room again, with a whole line. The limit of a file's size stands for
# the size of a disk.
(
    ulimit -f 64
    exec "$lockstep" run -n 2 -- sh -c "
        if [ \$LOCKSTEP_RANK_HINT = 0 ]; then
            head -c 100000 /dev/zero | tr '\\0' y; echo; : >$work/filled
        fi
        until [ -e $work/room ]; do sleep 0.02; done; echo again"
) >>"$work/grows" 2>"$work/err" &
launcher=$!
wait_for "$work/filled"
comes "$work/err" "lockstep run: cannot write to standard output: File too large"
: >"$work/grows"
: >"$work/room"
wait "$launcher"
equal "status of a run whose disk got room" $? 0
for rank in 0 1; do
    grep -qx "\[$rank\] again" "$work/grows" || fail "no line of rank $rank: $(head -c 300 "$work/grows")"
done

# A reader that does not read stops the workers' output, but not the signals.
mkfifo "$work/fifo"
sleep 600 <"$work/fifo" &
reader=$!
cat >"$work/talker" <<END
#!/bin/sh
trap 'touch $work/heard.\$LOCKSTEP_RANK_HINT' INT
touch $work/talks.\$LOCKSTEP_RANK_HINT
yes
END
chmod +x "$work/talker"
"${hearing[@]}" "$lockstep" run -n 2 -- "$work/talker" 2>/dev/null </dev/null >"$work/fifo" &
launcher=$!
for rank in 0 1; do wait_for "$work/talks.$rank"; done
sleep 0.5
kill -INT "$launcher"
for rank in 0 1; do wait_for "$work/heard.$rank"; done
sleep 1
kill -INT "$launcher"
began=$(now_ms)
wait "$launcher" 2>/dev/null
within 2000 "$began" "the end with a reader that does not read"
kill "$reader"
wait "$reader" 2>/dev/null

nothing_left "output"
finish
