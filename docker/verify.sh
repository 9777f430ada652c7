#!/usr/bin/env bash
# Build the image without a Docker daemon, start it and run a job through it. As root on
# Debian, with mmdebstrap and buildah installed:
#
#     docker/verify.sh
#
# The base is made by mmdebstrap instead of pulled, so no registry is needed; buildah runs
# the steps in a chroot and the server starts from the mounted image.
set -euo pipefail

cd "$(dirname "$0")/.."
work=$(mktemp -d)
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
buildah() { command buildah --root "$work/store" --runroot "$work/run" "$@"; }
finish() {
    buildah rm --all > /dev/null 2>&1 || true
    rm -rf "$work"
}
trap finish EXIT

echo "verify: making the base"
mmdebstrap --quiet --variant=minbase bookworm "$work/base.tar"
base=$(buildah from scratch)
buildah add --quiet "$base" "$work/base.tar" / > /dev/null
buildah commit --quiet "$base" localhost/base > /dev/null

echo "verify: building docker/Dockerfile.pg"
buildah bud --quiet --format docker --build-arg BASE=localhost/base -f docker/Dockerfile.pg \
    -t localhost/pulse-pg . > /dev/null

echo "verify: starting it and running a job"
image=$(buildah from localhost/pulse-pg)
buildah run --user postgres --env POSTGRES_PASSWORD=secret "$image" -- sh -euc '
    pulse-entrypoint -c listen_addresses= > /tmp/log 2>&1 &
    server=$!
    try=0
    until psql -qXAt -h /var/run/postgresql -c "SELECT pulse.enqueue('\''hello'\'')" \
            > /dev/null 2>&1; do
        try=$((try + 1))
        [ $try -lt 100 ] || { cat /tmp/log; exit 1; }
        sleep 0.2
    done
    psql -qXAt -h /var/run/postgresql \
        -c "SELECT kind FROM pulse.claim_batch('\''verify'\'')" \
        -c "SELECT extname, extversion FROM pg_extension ORDER BY 1" \
        -c "SELECT name, default_version FROM pg_available_extensions WHERE name = '\''pgtap'\''"
    kill -INT $server
    wait $server
'
echo "verify: ok"
