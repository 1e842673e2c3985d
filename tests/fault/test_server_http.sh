#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The HTTP side and the health checks of a real lockstep-coordinator, asked by clients that are not
# ours: curl for HTTP/1.1 and HTTP/2, Python's json.
set -euo pipefail

folder=$(mktemp -d)
bin=${LOCKSTEP_TEST_BIN:-build/bin}
"$bin/lockstep-coordinator" --listen 127.0.0.1:0 --http 127.0.0.1:0 --json --drain-ms 600000 \
    --port-file "$folder/ports" --parent-death=$$ >"$folder/out" 2>"$folder/err" &
pid=$!
trap 'kill "$pid" 2>/dev/null || true; rm -rf "$folder"' EXIT

fail() {
    echo "$*"
    cat "$folder/err"
    exit 1
}

# Waits until all these files have something in them.
await() {
    local file
    for _ in $(seq 3000); do
        for file; do
            [ -s "$file" ] || break
        done
        [ -s "$file" ] && return 0
        kill -0 "$pid" 2>/dev/null || fail "the daemon has ended"
        sleep 0.02
    done
    fail "nothing came to $file"
}

await "$folder/ports"
read -r ports <"$folder/ports"
grpc=${ports#grpc=} grpc=${grpc%% *} http=${ports##*http=}
url=http://127.0.0.1:$http

# status METHOD PATH WANTED
status() {
    local got
    got=$(curl -sS -m 20 -o "$folder/body" -w '%{http_code}' -X "$1" "$url$2")
    [ "$got" = "$3" ] || fail "$1 $2 gave $got instead of $3"
}

# health STATUS TEXT ARGUMENTS...: the command that container runtimes call.
health() {
    local wanted=$1 text=$2 got code=0
    shift 2
    got=$("$bin/lockstep" health --http "$url" "$@" 2>&1) || code=$?
    [[ $code = "$wanted" && $got = *"$text" ]] || fail "health $*: status $code, $got"
}

health 0 ok
health 0 ok --live
health 0 '{"ok":true,"text":"ok"}' --json
status GET /healthz 200
status GET /readyz 200
status GET /nothing 404
python3 -m json.tool <"$folder/body" >/dev/null || fail "404 is not JSON"
status GET /api/v1/jobs/nothing 404
status GET "/api/v1/jobs/%00" 404
status POST /api/v1/jobs 405
python3 -m json.tool <"$folder/body" >/dev/null || fail "405 is not JSON"
status DELETE / 405
status GET / 200
grep -q "color-scheme" "$folder/body" || fail "the page is not there"
if grep -Eq '(src|href)="?(https?:)?//' "$folder/body"; then fail "the page asks elsewhere"; fi
if grep -Eq '<script>|<style>| style=| on[a-z]+=' "$folder/body"; then fail "the page has code inside"; fi
for file in page.css page.js; do
    status GET "/$file" 200
    cmp -s "$folder/body" "server/page/$file" || fail "$file is not the one of the source"
done
if grep -Eq 'innerHTML|outerHTML|insertAdjacent|document.write|eval\(' "$folder/body"; then
    fail "the page makes markup of texts"
fi
status GET /api/v1/stalls 200
[ "$(cat "$folder/body")" = '{"stalls":[]}' ] || fail "stalls: $(cat "$folder/body")"
status GET /events 404
status GET /api/v1/jobs/nothing/state 404

status GET /api/v1/jobs 200
await "$folder/out"
python3 - "$folder/body" "$folder/out" <<'PYTHON' || fail "the API changed its keys"
import json, sys
body = json.load(open(sys.argv[1]))
assert body["jobs"] == [], body
assert set(body["coordinator"]) >= {
    "version", "incarnation", "uptime_ms", "draining", "listening", "streams"}, body
start = json.load(open(sys.argv[2]))
assert start["event"] == "ready" and start["grpc_port"] > 0 and start["http_port"] > 0, start
PYTHON

# HEAD tells the length and sends nothing.
grep -qx $'Content-Length: 3\r' <(curl -sS -m 20 -I "$url/healthz") || fail "HEAD"

# A header above the bound, and a body that nobody asked for.
code=$(curl -s -m 20 -o /dev/null -w '%{http_code}' -H "X: $(head -c 20000 /dev/zero | tr '\0' a)" \
    "$url/healthz" || true)
[ "$code" != 200 ] || fail "a header of 20,000 bytes was taken"
code=$(head -c 100000 /dev/zero | curl -s -m 20 -o /dev/null -w '%{http_code}' --data-binary @- \
    "$url/healthz" || true)
[ "$code" != 200 ] || fail "a body of 100,000 bytes was taken"

# Prometheus: every sample has its HELP and TYPE, and its name our prefix.
status GET /metrics 200
python3 - "$folder/body" <<'PYTHON' || fail "the metrics are malformed"
import re, sys
types = {}
for line in open(sys.argv[1]):
    if line.startswith("# TYPE "):
        _, _, name, kind = line.split()
        types[name] = kind
    elif not line.startswith("#"):
        name = re.match(r'(lockstep_coordinator_\w+)(\{\w+="[^"]*"\})? [0-9.]+\n$', line).group(1)
        assert name in types, name
        assert name.endswith("_total") == (types[name] == "counter"), name
for name in ("jobs", "workers", "decode_errors_total", "accept_failures_total",
             "process_start_time_seconds", "refusals_total", "halts_total"):
    assert "lockstep_coordinator_" + name in types, name
PYTHON

if command -v promtool >/dev/null; then
    promtool check metrics <"$folder/body" || fail "promtool finds fault with the metrics"
else
    echo "promtool is not here: the metrics were checked by this test alone"
fi

# grpc.health.v1 over an HTTP/2 that is not gRPC's.
# request SERVICE FILE writes a HealthCheckRequest as gRPC frames it.
request() {
    python3 -c 'import sys; s = sys.argv[1].encode(); m = b"\n" + bytes([len(s)]) + s if s else b""
sys.stdout.buffer.write(b"\0" + len(m).to_bytes(4, "big") + m)' "$1" >"$2"
}
# call PATH REQUEST-FILE [flags of curl]: the reply to stdout.
call() {
    local path=$1 file=$2
    shift 2
    curl -s -N --http2-prior-knowledge -H 'content-type: application/grpc' -H 'te: trailers' "$@" \
        --data-binary "@$file" "http://127.0.0.1:$grpc/$path" ||
        [ $? = 92 ] # A call that ended before all of the request was read; the headers tell.
}
hex() {
    od -An -tx1 "$1" | tr -d ' \n'
}
# check SERVICE WANTED-STATUS [WANTED-REPLY]
check() {
    request "$1" "$folder/request"
    call grpc.health.v1.Health/Check "$folder/request" -m 20 -D "$folder/headers" >"$folder/reply"
    grep -qi "^grpc-status: $2" "$folder/headers" || fail "check '$1': $(cat "$folder/headers")"
    [ "$(hex "$folder/reply")" = "${3:-}" ] || fail "check '$1' says $(hex "$folder/reply")"
}
serving=00000000020801 not_serving=00000000020802 service_unknown=00000000020803
check "" 0 $serving
check lockstep.v1.Coordinator 0 $serving
check no.Such 5
call lockstep.v1.Coordinator/NoSuch "$folder/request" -m 20 -D "$folder/headers" >/dev/null
grep -qi '^grpc-status: 12' "$folder/headers" || fail "unknown method: $(cat "$folder/headers")"

# A watch on an unknown service says so and stays. One on ours tells when SIGTERM comes; a control
# stream that stands keeps the drain open meanwhile.
request no.Such "$folder/no_such"
request lockstep.v1.Coordinator "$folder/ours"
call grpc.health.v1.Health/Watch "$folder/no_such" -m 600 >"$folder/unknown" 2>/dev/null &
call grpc.health.v1.Health/Watch "$folder/ours" -m 600 >"$folder/watched" 2>/dev/null &
await "$folder/unknown" "$folder/watched"
[ "$(hex "$folder/unknown")" = $service_unknown ] || fail "watch: $(hex "$folder/unknown")"

mkfifo "$folder/upload"
curl -s -N --http2-prior-knowledge -H 'content-type: application/grpc' -H 'te: trailers' -X POST \
    -T - "http://127.0.0.1:$grpc/lockstep.v1.Coordinator/Session" <"$folder/upload" >/dev/null &
stream=$!
exec 9>"$folder/upload"
until grep -qx 'lockstep_coordinator_streams 1' <(curl -s -m 20 "$url/metrics"); do
    kill -0 "$stream" || fail "the stream has ended"
done
kill "$pid"
for _ in $(seq 3000); do
    [ "$(hex "$folder/watched")" = $serving$not_serving ] && break
    sleep 0.02
done
[ "$(hex "$folder/watched")" = $serving$not_serving ] || fail "watch: $(hex "$folder/watched")"
[ "$(curl -s -m 20 -o /dev/null -w '%{http_code}' "$url/readyz")" = 503 ] || fail "still ready"
health 1 "127.0.0.1:$http answers: draining"
health 1 "127.0.0.1:$http answers: draining\"}" --json
health 0 ok --live

# A port file replaces no pipe.
mkfifo "$folder/pipe"
code=0
timeout 20 "$bin/lockstep-coordinator" --listen 127.0.0.1:0 --http off --port-file "$folder/pipe" \
    2>"$folder/refused" || code=$?
[ "$code" = 1 ] || fail "a coordinator whose port file is a pipe ended with $code"
grep -q "cannot write the port file '$folder/pipe' (not a regular file)" "$folder/refused" ||
    fail "of a pipe: $(cat "$folder/refused")"
[ -p "$folder/pipe" ] || fail "the pipe was replaced"
kill "$stream"
exec 9>&-
code=0
wait "$pid" || code=$?
[ "$code" = 0 ] || fail "ended with $code"
wait || true
