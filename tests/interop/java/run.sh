#!/bin/sh
# Builds the probe when its sources are newer than the build, then runs it:  run.sh facts STORE OUT [key=value...]
# PROBE_HOME: a folder for everything the JVM leaves behind (log, unpacked native libraries). With it the JVM replaces
# this shell, so it can be killed by our process id, and the folder is the caller's to remove. Without it a temporary
# one is made and removed. PROBE_JAVA_OPTS: more JVM options.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cp_file=$here/target/cp.txt

stale() {
    [ -f "$here/target/classes/StoreProbe.class" ] && [ -f "$cp_file" ] || return 0
    [ -n "$(find "$here/pom.xml" "$here/src" -newer "$cp_file" -print | head -n 1)" ]
}

if stale; then
    rm -f "$cp_file"
    mvn -q -B -f "$here/pom.xml" package dependency:build-classpath -Dmdep.outputFile=target/cp.txt >&2
fi
[ "${1:-}" = build ] && exit 0

own_home=
if [ -z "${PROBE_HOME:-}" ]; then
    own_home=$(mktemp -d)
    trap 'rm -rf "$own_home"' EXIT
    PROBE_HOME=$own_home
fi

set -- \
    -Xms64m -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -XX:+ExitOnOutOfMemoryError \
    -Dfile.encoding=UTF-8 -Duser.language=en "-Duser.home=$PROBE_HOME" "-Djava.io.tmpdir=$PROBE_HOME" \
    --add-opens=java.base/java.nio=ALL-UNNAMED --add-opens=java.base/sun.nio.ch=ALL-UNNAMED \
    --add-opens=java.base/java.lang=ALL-UNNAMED --add-opens=java.base/java.util=ALL-UNNAMED \
    --add-opens=java.base/jdk.internal.misc=ALL-UNNAMED --add-exports=java.base/jdk.internal.ref=ALL-UNNAMED \
    --add-exports=java.base/sun.nio.ch=ALL-UNNAMED \
    ${PROBE_JAVA_OPTS:-} -cp "$here/target/classes:$(cat "$cp_file")" StoreProbe "$@"

if [ -n "$own_home" ]; then
    java "$@"
else
    exec java "$@"
fi
