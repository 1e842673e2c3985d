#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Nobody else of the machine gets into a job of `lockstep run`: workers meet the coordinator at a
# socket in a directory that is closed to others, the page wants a token, and nothing of either is
# left when the run has ended, however it ended.
. "$(dirname "$0")/run_lib.sh"

mkdir "$work/tmp"
export TMPDIR=$work/tmp

# A worker that says where everything is and waits.
cat >"$work/trainer" <<END
#!/bin/sh
echo "\$LOCKSTEP_COORDINATOR \$LOCKSTEP_DASHBOARD" >$work/place.part
mv $work/place.part $work/place
while [ -e $work/place ]; do sleep 0.02; done
END
chmod +x "$work/trainer"

# start: a job in the background; sets launcher, socket, url, token and http (HOST:PORT).
start() {
    rm -f "$work/place"
    "$lockstep" run -n 1 "$@" -- "$work/trainer" >"$work/out" 2>"$work/err" </dev/null &
    launcher=$!
    wait_for "$work/place"
    read -r coordinator url <"$work/place"
    socket=${coordinator#unix:}
    token=${url#*token=}
    http=${url#http://}
    http=${http%%/*}
}

# ends WHAT: nothing is left in TMPDIR.
ends() {
    local i
    wait "$launcher" 2>/dev/null
    for ((i = 0; i < 100 * slow; i++)); do
        [ -n "$(ls "$work/tmp")" ] || return 0
        sleep 0.02
    done
    fail "$1 left in TMPDIR: $(ls "$work/tmp")"
}

# status WANTED CURL-ARGUMENTS...
status() {
    local wanted=$1 got
    shift
    got=$(curl -s -o /dev/null -w '%{http_code}' "$@")
    equal "curl $*" "$got" "$wanted"
}

start
equal "mode of the directory" "$(stat -c %a "$(dirname "$socket")")" 700
[ -S "$socket" ] || fail "LOCKSTEP_COORDINATOR=$coordinator is no socket"
equal "mode of the token" "$(stat -c %a "$(dirname "$socket")/token")" 600
equal "size of the token" "${#token}" 64

# Nothing but the page listens on TCP.
daemon=$(pgrep -f "listen $coordinator" | head -1)
ports=0
for inode in $(ls -l "/proc/$daemon/fd" | sed -n 's/.*socket:\[\([0-9]*\)\].*/\1/p'); do
    ports=$((ports + $(awk -v inode="$inode" '$4 == "0A" && $10 == inode' /proc/net/tcp /proc/net/tcp6 2>/dev/null | wc -l)))
done
equal "listeners on TCP" "$ports" 1

# Only a client with the token learns of the job.
for path in api/v1/jobs api/v1/stalls api/v1/events api/v1/ranks/0/stack; do status 401 "http://$http/$path"; done
status 401 -H "Authorization: Bearer ${token%?}x" "http://$http/api/v1/jobs"
status 401 -H "Authorization: Bearer ${token%?}" "http://$http/api/v1/jobs"
status 200 -H "Authorization: Bearer $token" "http://$http/api/v1/jobs"
status 200 "$url" # The page itself holds nothing.
status 200 "http://$http/healthz"

# The printed address works as it is printed.
has "$work/err" "dashboard $url"
"$lockstep" status --http "$url" >"$work/status" 2>&1 || fail "status --http URL: $(cat "$work/status")"
LOCKSTEP_DASHBOARD=$url "$lockstep" stalls >/dev/null || fail "stalls with LOCKSTEP_DASHBOARD"
code=0
"$lockstep" status --http "$http" >"$work/status" 2>&1 || code=$?
equal "status without the token" "$code" 1
has "$work/status" "a token is needed"
echo "$token" >"$work/token"
"$lockstep" status --http "$http" --token-file "$work/token" >/dev/null || fail "status --token-file"

# No list of processes has the token; a command that was given it hides it.
"$lockstep" status --watch --http "$url" >"$work/status" 2>&1 &
watcher=$!
comes "$work/status" "no jobs"
for pid in "$daemon" "$launcher" "$watcher" $(pgrep -P "$launcher"); do
    ! grep -q "$token" "/proc/$pid/cmdline" || fail "the token is in an argument of $pid"
done
kill -INT "$watcher" 2>/dev/null
kill "$watcher" 2>/dev/null
wait "$watcher" 2>/dev/null

# Another user of the machine.
if [ "$(id -u)" = 0 ] && [ -x /usr/bin/python3 ] && command -v setpriv >/dev/null; then
    code=0
    setpriv --reuid=65534 --regid=65534 --clear-groups /usr/bin/python3 -c '
import socket, sys
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except PermissionError:
    sys.exit(13)' "$socket" || code=$?
    equal "another user at the socket" "$code" 13
fi

rm "$work/place"
ends "a good end"

start
kill -TERM "$launcher"
ends "SIGTERM"
start
supervisor=$(pgrep -P "$launcher" | head -1)
kill -KILL "$supervisor"
ends "SIGKILL of the supervisor"
start
kill -KILL "$launcher"
ends "SIGKILL of the launcher"
nothing_left "the runs"

# Where the directory cannot be below TMPDIR it is in /tmp; a relative one is as good as another.
long=$work/tmp/$(printf 'x%.0s' {1..90})
mkdir "$long"
TMPDIR=$long start
case $socket in /tmp/lockstep-*/socket) ;; *) fail "the socket is $socket" ;; esac
[ ${#socket} -lt 108 ] || fail "the socket's path has ${#socket} bytes"
rm "$work/place"
wait "$launcher" || fail "a run with a long TMPDIR: $(cat "$work/err")"
rmdir "$long"
# The same where gRPC would take the path for another one.
mkdir "$work/tmp/a,b"
TMPDIR=$work/tmp/a,b start
case $socket in /tmp/lockstep-*/socket) ;; *) fail "the socket is $socket" ;; esac
rm "$work/place"
wait "$launcher" || fail "a run with a comma in TMPDIR: $(cat "$work/err")"
rmdir "$work/tmp/a,b"
cd "$work" || exit 1
lockstep=$(cd "$OLDPWD" && realpath "$lockstep")
TMPDIR=tmp start
equal "a relative TMPDIR" "$(dirname "$(dirname "$socket")")" "$(realpath "$work/tmp")"
rm "$work/place"
ends "a run with a relative TMPDIR"

# Other addresses are printed as they are.
start --http localhost:0
has "$work/err" "dashboard http://localhost:"
"$lockstep" status --http "$url" >/dev/null || fail "status --http $url"
rm "$work/place"
ends "a run with --http localhost:0"
if [ -e /proc/net/if_inet6 ] && grep -q ' lo$' /proc/net/if_inet6; then
    start --http '[::1]:0'
    has "$work/err" "dashboard http://[::1]:"
    "$lockstep" status --http "$url" >/dev/null || fail "status --http $url"
    rm "$work/place"
    ends "a run with --http [::1]:0"
fi
finish
