#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Certificates that are wrong in each way that certificates can be, made by openssl and by
# `lockstep certs`: what the coordinator and the trainer say of each. Then a rotation under a job
# that runs, certificates that end under one, and clients of our own that ask for what they may not.
# shellcheck source=tests/fault/run_lib.sh
source "$(dirname "$0")/run_lib.sh"
for tool in openssl curl; do
    command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }
done
lockstep=$(realpath "$lockstep")
bin=$(realpath "${LOCKSTEP_TEST_BIN:-build/bin}")
library=$(realpath "${LOCKSTEP_TEST_LIB:-build/lib}")
cd "$work" || exit 1
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT

# ---- what there is: ca (ours) and other, both with a coordinator and a worker --------------------

"$lockstep" certs init --dir ca --name 127.0.0.1 >/dev/null || fail "init"
"$lockstep" certs init --dir other --name 127.0.0.1 >/dev/null || fail "init other"
"$lockstep" certs issue --dir ca --role coordinator --name elsewhere.test --out elsewhere >/dev/null
"$lockstep" certs issue --dir ca --role observer --out observer >said
grep -q "^observer: an observer's certificate, " said || fail "the words of issue: $(cat said)"
code=0
"$lockstep" certs init --dir ca >/dev/null 2>over || code=$?
equal "init over an authority" "$code" 1
has over "nothing is overwritten"
code=0
"$lockstep" certs init --dir young --name 'bad name' --days 10 2>said || code=$?
equal "init with a bad name" "$code" 2
has said "'bad name' is neither a DNS name nor an address"
mkdir -p young/worker && : >young/worker/tls.key
"$lockstep" certs init --dir young --name 127.0.0.1 --days 10 2>said && fail "init over a worker's key"
rm young/worker/tls.key
"$lockstep" certs init --dir young --name 127.0.0.1 --days 10 >said 2>&1 || fail "the corrected init: $(cat said)"
[ "$(grep -c "for 10 days$" said)" = 2 ] || fail "certificates of 10 days: $(cat said)"
"$lockstep" certs issue --dir young --role worker --out clipped >said || fail "issue by a young authority"
has said "for 10 days, when its authority ends"
equal "end of a certificate" "$(openssl x509 -in clipped/tls.crt -noout -enddate)" \
    "$(openssl x509 -in young/ca.crt -noout -enddate)"
"$lockstep" certs issue --dir young --role worker --out clipped2 --json >said || fail "issue, as JSON"
has said '"days":10'
equal "mode of a key" "$(stat -c %a ca/ca.key ca/worker/tls.key | tr '\n' ' ')" "600 600 "

cat >ca.cnf <<END
[ca]
default_ca = one
[one]
database = index.txt
new_certs_dir = .
unique_subject = no
rand_serial = yes
default_md = sha256
policy = any
[any]
organizationName = optional
commonName = supplied
[leaf]
basicConstraints = critical,CA:FALSE
subjectAltName = \${ENV::NAMES}
[authority]
basicConstraints = critical,CA:TRUE
END
: >index.txt

# by_openssl DIRECTORY NAMES BEGIN END
by_openssl() {
    mkdir "$1" && cp ca/ca.crt "$1" &&
        openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" \
            -keyout "$1/tls.key" -out request.pem 2>/dev/null &&
        NAMES=$2 openssl ca -batch -config ca.cnf -extensions leaf -cert ca/ca.crt \
            -keyfile ca/ca.key -startdate "$3" -enddate "$4" -in request.pem -out "$1/tls.crt" \
            -notext 2>openssl.log || { cat openssl.log; fail "openssl cannot make $1"; }
}
both=URI:lockstep://coordinator,URI:lockstep://job/default/worker,IP:127.0.0.1
by_openssl good "$both" 20200101000000Z 20990101000000Z
by_openssl expired "$both" 20200101000000Z 20200201000000Z
by_openssl early "$both" 20980101000000Z 20990101000000Z
by_openssl nameless IP:127.0.0.1 20200101000000Z 20990101000000Z
cp -r good swapped && cp expired/tls.key swapped/
cp -r good stranger && cp other/ca.crt stranger/
cp -r good empty && : >empty/tls.crt
cp -r good torn && head -c 200 good/tls.crt >torn/tls.crt
# old_authority FILE BEGIN END: our authority again, with its key and name, valid at other times.
old_authority() {
    openssl req -new -key ca/ca.key -subj "$(openssl x509 -in ca/ca.crt -noout -subject \
        -nameopt compat | sed 's/^subject=//')" -out request.pem 2>openssl.log &&
        NAMES=DNS:none openssl ca -batch -config ca.cnf -extensions authority -preserveDN \
            -selfsign -keyfile ca/ca.key -startdate "$2" -enddate "$3" -in request.pem -out "$1" \
            -notext 2>openssl.log ||
        { cat openssl.log; fail "openssl cannot make $1"; }
}
cp -r good aged && old_authority aged/ca.crt 20200101000000Z 20200201000000Z
cp ca/ca.key aged/ && code=0
"$lockstep" certs issue --dir aged --role worker --out late 2>said || code=$?
equal "issue by an authority that has ended" "$code" 1
has said "the authority has ended"
[ ! -e late ] || fail "a certificate of an authority that has ended"
rm aged/ca.key
cp -r aged mixed && cat other/ca.crt >>mixed/ca.crt
cp -r good crowded && for _ in $(seq 64); do cat ca/ca.crt; done >>crowded/ca.crt
cp -r good absent && rm absent/ca.crt
cp -r good odd && rm odd/tls.key && mkdir odd/tls.key
cp -r good locked && openssl pkey -in good/tls.key -aes128 -passout pass:secret -out locked/tls.key
# A client that believes us, and that we need not believe.
cp -r other/worker rogue && cat ca/ca.crt other/ca.crt >rogue/ca.crt

# ---- one's own material, at the start of either side ----------------------------------------------

# start DIRECTORY [FLAGS...]: a coordinator at $listen; its port in $port, its process in $pid.
start() {
    local directory=$1
    shift
    rm -f ports
    "$bin/lockstep-coordinator" --listen "${listen:-127.0.0.1:0}" --http 127.0.0.1:0 --port-file ports \
        --tls-dir "$directory" "$@" 2>daemon.log &
    pid=$!
    wait_for ports
    [ -e ports ] || { cat daemon.log; finish; }
    port=$(sed 's/grpc=\([0-9]*\).*/\1/' ports)
    http=$(sed 's/.*http=//' ports)
}

stop() {
    kill "$pid"
    wait "$pid" || fail "the coordinator ended with $?"
}

# train DIRECTORY OUTPUT [VARIABLES...]
train() {
    local directory=$1 output=$2
    shift 2
    env LOCKSTEP_WORLD_SIZE=1 LOCKSTEP_COORDINATOR="127.0.0.1:$port" LOCKSTEP_TLS_DIR="$directory" "$@" \
        "$library/../examples/hello" >"$output" 2>&1
}
# In vain: it tries for so long.
vain=LOCKSTEP_OPEN_TIMEOUT_MS=$((500 * slow))

# asked WANTED SAYS COMMAND [OPTIONS...]: by the tool; an option wins over the variable.
asked() {
    local wanted=$1 says=$2 code=0
    shift 2
    LOCKSTEP_DASHBOARD=https://127.0.0.1:$http "$lockstep" "$@" >said 2>&1 || code=$?
    equal "status of lockstep $*" "$code" "$wanted"
    has said "$says"
}

# No coordinator begins with that directory; it says why in one line.
refuses() { # DIRECTORY SENTENCE
    local code=0
    "$bin/lockstep-coordinator" --listen 127.0.0.1:0 --http off --tls-dir "$1" 2>said || code=$?
    equal "a coordinator with $1" "$code" 1
    has said "$2"
    equal "lines about $1" "$(wc -l <said)" 1
}

port=1
while IFS='|' read -r directory says; do
    refuses "$directory" "$says"
    train "$directory" said $vain && fail "a worker with $directory"
    has said "$says"
done <<'END'
expired|expired/tls.crt: expired on 2020-02-01 00:00 UTC
early|early/tls.crt: is not valid before 2098-01-01 00:00 UTC
aged|aged/ca.crt: expired on 2020-02-01 00:00 UTC
mixed|mixed/ca.crt: expired on 2020-02-01 00:00 UTC
nameless|nameless/tls.crt: is not a
swapped|swapped/tls.key: does not belong to tls.crt
stranger|stranger/tls.crt: is not signed by an authority in ca.crt
empty|empty/tls.crt: holds no certificate in PEM
torn|torn/tls.crt: holds no certificate in PEM, or a damaged one
absent|absent/ca.crt: cannot be read: No such file or directory
odd|odd/tls.key: is not a file
locked|locked/tls.key: is protected by a passphrase
END
refuses crowded "crowded/ca.crt: holds 65 authorities; 64 are the most" # A worker takes them.

# ---- the other side -------------------------------------------------------------------------------

start good
train good said || { fail "certificates by openssl"; cat said; }
train ca/worker said || { fail "certificates by lockstep"; cat said; }
# A version below 1.3. Few of gRPC's lines are passed on at a time, and the next clients try often.
openssl s_client -connect "127.0.0.1:$port" -tls1_2 -alpn h2 -cert good/tls.crt -key good/tls.key \
    </dev/null >said 2>&1 && fail "TLS 1.2"
comes daemon.log 'text="a client speaks no TLS 1.3"'
train rogue said $vain && fail "a client of another authority"
has said "the coordinator hung up when it had seen the certificate rogue/tls.crt"
comes daemon.log 'text="a client'"'"'s certificate is not signed by an authority in ca.crt'
train other/worker said $vain && fail "a coordinator of another authority"
has said "the coordinator's certificate is not signed by an authority in other/worker/ca.crt"
train "" said $vain && fail "a worker without certificates"
has said "set LOCKSTEP_TLS_DIR"
asked 1 "it does not speak TLS: is it started with --http-tls?" status --cacert ca/ca.crt
for ((i = 0; i < 100 * slow; i++)); do # Answers may be 100 ms old.
    curl -s "http://127.0.0.1:$http/metrics" >metrics
    grep -q '^lockstep_coordinator_tls_handshakes_failed_total [1-9]' metrics && break
    sleep 0.1
done
grep -q '^lockstep_coordinator_tls_handshakes_failed_total [1-9]' metrics || fail "not counted"
has metrics 'lockstep_coordinator_tls_certificate_expires_seconds 4070908800'

# A client of its own, whose certificate is good and no worker's. It learns that, and no more.
printf '\0\0\0\0\0' >message
curl -s --http2 --cacert ca/ca.crt --cert observer/tls.crt --key observer/tls.key -D headers \
    -o /dev/null -H 'content-type: application/grpc' -H 'te: trailers' --data-binary @message \
    "https://127.0.0.1:$port/lockstep.v1.Coordinator/Session"
has headers "grpc-status: 7"
grep -qi "grpc-message:.*default" headers && fail "it names a job"
# One that nobody signed.
mkdir self && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=self \
    -addext "subjectAltName=URI:lockstep://job/*/worker" -keyout self/tls.key -out self/tls.crt \
    2>/dev/null
curl -s --http2 --cacert ca/ca.crt --cert self/tls.crt --key self/tls.key -o answer \
    -H 'content-type: application/grpc' --data-binary @message \
    "https://127.0.0.1:$port/lockstep.v1.Coordinator/Session" && fail "a self-signed client"
stop

# ---- HTTP with the same certificate -----------------------------------------------------------------

cp -r good web
(umask 077 && openssl rand -hex 32 >token && openssl rand -hex 32 >wrong)
start web --http-tls --http-token-file token
asked 0 '"jobs":[]' status --json --cacert ca/ca.crt --token-file token
asked 0 '"jobs":[]' status --json --cacert ca/ca.crt --token-file token --http "127.0.0.1:$http"
asked 0 "nothing stands still" stalls --cacert ca/ca.crt --token-file token
asked 1 "there is no such job" stacks 0 --job default --cacert ca/ca.crt --token-file token
asked 1 "answers: " status --cacert ca/ca.crt --token-file wrong
asked 1 "a token is needed" stalls --cacert ca/ca.crt
asked 1 "its certificate is not believed" status --cacert other/ca.crt --token-file token
asked 1 "; --cacert names the authority that signed it" status --token-file token
asked 1 "--cacert nowhere cannot be read: No such file or directory" status --cacert nowhere
asked 1 "it does not speak HTTP; where it speaks HTTPS, say https://" status --http "127.0.0.1:$http"
asked 1 "cannot ask localhost:$http: its certificate is not for 'localhost'" status \
    --cacert ca/ca.crt --http "localhost:$http"
asked 0 "it answers and has 0 jobs" doctor --http "127.0.0.1:$http" --cacert ca/ca.crt --token-file token
asked 1 "it has no job 'nobody': lockstep status" \
    doctor --http "127.0.0.1:$http" --cacert ca/ca.crt --token-file token --job nobody
curl -s --cacert ca/ca.crt -D headers -o said "https://127.0.0.1:$http/readyz" || fail "HTTPS"
has said ok
has headers "X-Content-Type-Options: nosniff"
curl -s --cacert other/ca.crt -o /dev/null "https://127.0.0.1:$http/readyz" && fail "HTTPS of others"
curl -s -o /dev/null "http://127.0.0.1:$http/readyz" && fail "HTTP where HTTPS is"
openssl s_client -connect "127.0.0.1:$http" -tls1_2 </dev/null >/dev/null 2>&1 && fail "HTTPS by 1.2"
served() {
    openssl s_client -connect "127.0.0.1:$http" </dev/null 2>/dev/null |
        openssl x509 -noout -fingerprint -sha256
}
equal "the certificate of HTTPS" "$(served)" \
    "$(openssl x509 -in good/tls.crt -noout -fingerprint -sha256)"
cp ca/coordinator/* web/
equal "the next certificate of HTTPS" "$(served)" \
    "$(openssl x509 -in ca/coordinator/tls.crt -noout -fingerprint -sha256)"
: >web/tls.key
equal "with a key that is gone" "$(served)" \
    "$(openssl x509 -in ca/coordinator/tls.crt -noout -fingerprint -sha256)"
stop

start elsewhere
train ca/worker said $vain && fail "a name that the certificate does not have"
has said "the coordinator's certificate is not for '127.0.0.1'"
stop

# serve FLAGS...: something that speaks TLS and is no coordinator; $port, $pid.
serve() {
    local i
    rm -f server.log
    openssl s_server -accept 127.0.0.1:0 -alpn h2 "$@" >server.log 2>&1 <> <(:) &
    pid=$!
    wait_for server.log
    for ((i = 0; i < 1000 * slow; i++)); do
        port=$(sed -n 's/^ACCEPT .*:\([0-9]*\)$/\1/p' server.log)
        [ -n "$port" ] && break
        sleep 0.02
    done
}

# Signed by our authority, and no coordinator; or one that speaks an old version: the worker hangs up.
serve -cert nameless/tls.crt -key nameless/tls.key -tls1_3
train ca/worker said $vain && fail "a server that is no coordinator"
has said "the certificate that answers there is not a coordinator's"
kill "$pid"
serve -cert good/tls.crt -key good/tls.key -tls1_2
train ca/worker said $vain && fail "a coordinator that speaks TLS 1.2"
has said "it does not speak TLS 1.3"
grep -q "CIPHER is" server.log && { fail "a stream over TLS 1.2"; cat server.log; }
kill "$pid"

# ---- rotation -------------------------------------------------------------------------------------

# Trains until the file "enough" is there, on all ranks in the same step.
cat >until.c <<'END'
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <unistd.h>
int main(void)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    lockstep_session *session;
    uint32_t rank, size;
    int32_t enough = 0, steps = 0;
    config.log = lockstep_log_to_fd;
    config.log_context = (void *)2;
    if (lockstep_open(&config, &session) < 0)
        return puts(lockstep_error_text()), 1;
    lockstep_world(session, &rank, &size);
    for (; !enough; steps++) {
        enough = access("enough", F_OK) == 0;
        if (lockstep_allreduce(session, "enough", &enough, 1, LOCKSTEP_INT32, LOCKSTEP_MAX,
                               LOCKSTEP_WAIT_FOREVER) < 0)
            return puts(lockstep_error_text()), 1;
        if (steps == 3)
            fclose(fopen("trains", "w"));
        usleep(10000);
    }
    printf("rank %u of %u has done %d steps\n", rank, size, steps > 3);
    return lockstep_close(session) < 0;
}
END
${CC:-cc} ${LOCKSTEP_TEST_SANITIZER:+-fsanitize=$LOCKSTEP_TEST_SANITIZER} until.c -o until \
    -I"$OLDPWD/include" -L"$library" -llockstep -Wl,-rpath,"$library" || fail "cannot compile"

fingerprint() {
    openssl s_client -connect "127.0.0.1:$port" -alpn h2 -cert good/tls.crt -key good/tls.key \
        </dev/null 2>/dev/null | openssl x509 -noout -fingerprint -sha256
}

cp -r ca/coordinator live
# The coordinator comes back at this port. Linux gives ports from 32768 on to connections; workers that
# try to reach the coordinator while it is away could take such a port.
listen=127.0.0.1:$((10000 + RANDOM % 10000))
start live
worker=(env LOCKSTEP_WORLD_SIZE=2 LOCKSTEP_COORDINATOR="127.0.0.1:$port" LOCKSTEP_TLS_DIR=ca/worker)
"${worker[@]}" JOB_COMPLETION_INDEX=1 ./until >first 2>&1 & # As in an Indexed Job.
first=$!
"${worker[@]}" JOB_COMPLETION_INDEX=0 ./until >second 2>&1 &
second=$!
wait_for trains
before=$(fingerprint)
# Half a rotation: the key of one and the certificate of the other. The good pair stays in use.
cp elsewhere/tls.key live/tls.key
equal "half a rotation" "$(fingerprint)" "$before"
comes daemon.log "event=tls_reload_failed"
comes daemon.log "live/tls.key: does not belong to tls.crt"
cp good/tls.key good/tls.crt live/
after=$(fingerprint)
[[ -n $after && $after != "$before" ]] || fail "the next handshake has the old certificate"
comes daemon.log "event=tls_reloaded"
train ca/worker said LOCKSTEP_JOB=later || { fail "the next worker"; cat said; }
# Another authority: streams that were let in stay, and newcomers need the new authority.
cp other/coordinator/* live/
train ca/worker said LOCKSTEP_JOB=later $vain && fail "a worker of the authority that is gone"
train other/worker said LOCKSTEP_JOB=later || { fail "a worker of the new authority"; cat said; }
# A worker that is refused takes up what its own directory holds by then.
cp -r ca/worker changing
refused=$(grep -c event=tls_handshake_failed daemon.log)
train changing said LOCKSTEP_JOB=later &
changing=$!
while [ "$(grep -c event=tls_handshake_failed daemon.log)" = "$refused" ]; do
    kill -0 $changing || break
    sleep 0.02
done
cp other/worker/* changing/
wait $changing || { fail "a worker whose certificates were replaced"; cat said; }
# The coordinator returns with that authority: workers of the job say why they do not go back to it.
kill -KILL "$pid"
start live
comes first "the coordinator's certificate is not signed by"
cp ca/coordinator/* live/
comes daemon.log "event=job_resuming"
: >enough
wait $first || { fail "the first rank"; cat first; }
wait $second || { fail "the second rank"; cat second; }
has first "rank 1 of 2 has done 1 steps"
stop

# ---- certificates that end during the job ---------------------------------------------------------

# The certificate of rank 0 ends, and the authority of which rank 1 knows. The job goes on.
rm enough trains
ends=$(date -u -d "+$((6 * slow)) seconds" +%Y%m%d%H%M%SZ)
by_openssl short "$both" 20200101000000Z "$ends"
cp -r good brief && old_authority brief/ca.crt 20200101000000Z "$ends"
start good
worker=(env LOCKSTEP_WORLD_SIZE=2 LOCKSTEP_COORDINATOR="127.0.0.1:$port")
"${worker[@]}" JOB_COMPLETION_INDEX=0 LOCKSTEP_TLS_DIR=short ./until >first 2>&1 &
first=$!
"${worker[@]}" JOB_COMPLETION_INDEX=1 LOCKSTEP_TLS_DIR=brief ./until >second 2>&1 &
second=$!
wait_for trains
own="certificates of this worker (LOCKSTEP_TLS_DIR, config.tls_dir)"
comes first "event=certificate_expired text=\"$own: short/tls.crt: expired on "
# The next one ends under the same stream.
by_openssl next "$both" 20200101000000Z "$(date -u -d "+$((7 * slow)) seconds" +%Y%m%d%H%M%SZ)"
cp next/* short/
for ((i = 0; i < 100 * slow; i++)); do
    [ "$(grep -c event=certificate_expired first)" = 1 ] || break
    sleep 0.2
done
while [[ $(date -u +%Y%m%d%H%M%SZ) < $ends ]]; do sleep 0.5; done
# Each rank that cannot go back to a new coordinator says what is wrong with its own files.
kill -KILL "$pid"
start good
comes first "$own: short/tls.crt: expired on "
comes second "$own: brief/ca.crt: expired on "
equal "warnings of an end" "$(cat first second | grep -c event=certificate_expired)" 2
comes daemon.log 'text="a client'"'"'s certificate has expired"'
cp early/tls.* short/
comes first "$own: short/tls.crt: is not valid before "
cp swapped/tls.crt short/
comes first "$own: short/tls.key: does not belong to tls.crt"
cp torn/tls.crt short/
comes first "$own: short/tls.crt: holds no certificate in PEM"
cp good/* short/
cp good/* brief/
: >enough
wait $first || { fail "the rank whose certificate had ended"; cat first; }
wait $second || { fail "the rank whose authority had ended"; cat second; }
stop

# A private coordinator and its workers have no use for certificates of the machine.
LOCKSTEP_TLS_DIR=nowhere LOCKSTEP_COORDINATOR_TLS_DIR=nowhere "$lockstep" run -n 2 -- \
    "$library/../examples/hello" >said 2>&1 || { fail "lockstep run"; cat said; }
finish
