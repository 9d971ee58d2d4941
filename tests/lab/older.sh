#!/usr/bin/env bash
# The suite's lower half with rdma-core 39, that of Ubuntu 22.04: a core that was built with later headers
# runs with it. Usage: older.sh [PYTEST ARGS]
set -euo pipefail

cd "$(dirname "$0")/../.."
archive=http://archive.ubuntu.com/ubuntu/pool/main/r/rdma-core
./lab build >/dev/null # which would empty the folder
mkdir -p build
work=$(mktemp -d -p "$PWD/build") # the guest sees it
trap 'rm -rf "$work"' EXIT
while read -r name sha256; do
    /usr/lib/apt/apt-helper -q -o APT::Sandbox::User=root download-file "$archive/${name}_39.0-1_amd64.deb" "$work/deb" "SHA256:$sha256" >&2
    dpkg-deb -x "$work/deb" "$work"
done <<'END'
libibverbs1 4926967621a9be88934d012f3cf5a1cb52a1ea0a99fd13b0f0a6fe27891e35dc
ibverbs-providers ed5da6e56919508e5d9f231ccbb0e75433107db562553acea8d7c08ae72a5576
librdmacm1 0d842f1cb86345b8611153a448b3253fd490e7fa88c436055ef8af2f715b792f
END
lib=$work/usr/lib/x86_64-linux-gnu
# What the provider of Soft-RoCE did not have yet.
[ $# -gt 0 ] || set -- --ignore=tests/work/test_atomic_write.py tests/base tests/work tests/notify tests/verbs tests/cm
./lab run -e "LD_LIBRARY_PATH=$lib" -e "IBV_DRIVERS=$lib/libibverbs/librxe" -- python -m pytest -q -p no:cacheprovider "$@"
