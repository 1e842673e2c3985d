#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The installed tree: liblockstep.so and liblockstep.a export lockstep_* and nothing else, the same
# in both and as in the header. The soname is right. With the flags of pkg-config a program builds
# and runs, in C and C++, against either library.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
fail() {
    echo "FAILED: $*"
    failed=1
}

# Named as the build itself names it: with another name in its flags all would be compiled again.
make -C "$root" BUILD="${BUILD#"$root"/}" CC="$CC" SAN="$LOCKSTEP_TEST_SANITIZER" PREFIX=/usr DESTDIR="$work/tree" \
    install >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
lib=$work/tree/usr/lib

# Version symbols (LOCKSTEP_0) are absolute and no functions.
nm --dynamic --defined-only "$lib/liblockstep.so" | awk '$2 != "A" { sub("@.*", "", $3); print $3 }' |
    sort >"$work/shared"
nm --extern-only --defined-only "$lib/liblockstep.a" | awk 'NF == 3 { print $3 }' | sort >"$work/static"
sed -n 's/^LOCKSTEP_API .*[ *]\(lockstep_[a-z_]*\)(.*/\1/p' \
    "$work/tree/usr/include/lockstep/lockstep.h" | sort >"$work/header"
[ "$(wc -l <"$work/header")" -ge 30 ] || fail "the header's functions were not found"
diff "$work/header" "$work/shared" || fail "header and liblockstep.so differ"
diff "$work/header" "$work/static" || fail "header and liblockstep.a differ"

soname=$(objdump -p "$lib/liblockstep.so" | awk '$1 == "SONAME" { print $2 }')
[ "$soname" = liblockstep.so.0 ] || fail "the soname is '$soname'"
[ -e "$lib/$soname" ] || fail "$soname is not installed"
for file in liblockstep.so liblockstep.so.0; do
    [ -L "$lib/$file" ] || fail "$file is not a link"
done

cat >"$work/alone.c" <<'END'
#include <lockstep/lockstep.h>
#include <stdio.h>

int main(void)
{
    lockstep_session *session;
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    float value = 2.5f;
    if (lockstep_open(&config, &session) < 0 ||
        lockstep_allreduce(session, "x", &value, 1, LOCKSTEP_FLOAT32, LOCKSTEP_SUM,
                           LOCKSTEP_WAIT_FOREVER) < 0 ||
        lockstep_close(session) < 0) {
        printf("%s\n", lockstep_error_text());
        return 1;
    }
    printf("version %s value %.1f\n", lockstep_version(), (double)value);
    return 0;
}
END

export PKG_CONFIG_PATH="$lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$work/tree"
export PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
case $LOCKSTEP_TEST_SANITIZER in
'') sanitize= ;;
*) sanitize=-fsanitize=$LOCKSTEP_TEST_SANITIZER ;;
esac
case $CC in
*clang*) cxx=clang++ ;;
*) cxx=g++ ;;
esac
version=$(pkg-config --modversion lockstep)
unset LOCKSTEP_COORDINATOR LOCKSTEP_WORLD_SIZE

# expect NAME: it builds with $build and runs.
expect() {
    name=$1
    shift
    if ! "$@" >"$work/log" 2>&1; then
        cat "$work/log"
        fail "$name does not build"
    elif [ "$(LD_LIBRARY_PATH=$lib "$work/$name" 2>&1)" != "version $version value 2.5" ]; then
        LD_LIBRARY_PATH=$lib "$work/$name" || true
        fail "$name does not run"
    fi
}

# The flags are several words.
warnings="-Wall -Wextra -Wpedantic -Werror"
dynamic=$(pkg-config --cflags --libs lockstep)
static=$(pkg-config --static --cflags --libs lockstep | sed 's/-llockstep/-l:liblockstep.a/')
expect c-dynamic $CC -std=c11 $warnings $sanitize "$work/alone.c" -o "$work/c-dynamic" $dynamic
expect c-static $CC -std=c11 $warnings $sanitize "$work/alone.c" -o "$work/c-static" $static
expect cxx-dynamic $cxx -x c++ -std=c++11 $warnings $sanitize "$work/alone.c" -x none \
    -o "$work/cxx-dynamic" $dynamic
expect cxx-static $cxx -x c++ -std=c++11 $warnings $sanitize "$work/alone.c" -x none \
    -o "$work/cxx-static" $static
if ldd "$work/c-static" | grep liblockstep; then
    fail "c-static is not static"
fi
exit $failed
