#!/usr/bin/env bash
# What somebody meets who has a bare Debian and the README: does what "Install" and "Try it" say,
# word for word, in a fresh root. Usage: newcomer.sh SUITE, as root; needs mmdebstrap.
set -euo pipefail

suite=$1
project=$(cd "$(dirname "$0")/../.." && pwd)
mirror=${CQNOTIFY_LAB_MIRROR:-http://deb.debian.org/debian}
root=$(mktemp -d)
trap 'rm -rf --one-file-system "$root"' EXIT

block() { # block HEADING: the first sh block below it
    awk -v heading="## $1" '
        $0 == heading { here = 1 }
        here && $0 == "```" && inside { exit }
        inside { print }
        here && $0 == "```sh" { inside = 1 }' "$project/README.md"
}

inside() { # a shell in the root, with this machine's devices, network and certificates
    touch "$root/etc/resolv.conf"
    # shellcheck disable=SC2016 # expanded there
    env -i HOME=/root LANG=C.UTF-8 TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        ${PIP_CERT:+"PIP_CERT=$PIP_CERT"} ${CQNOTIFY_LAB_MIRROR:+"CQNOTIFY_LAB_MIRROR=$CQNOTIFY_LAB_MIRROR"} \
        DEBIAN_FRONTEND=noninteractive unshare --mount sh -euc '
        root=$1
        shift
        mount -t proc proc "$root/proc"
        for path in /dev /etc/resolv.conf /etc/ssl/certs; do mount --rbind "$path" "$root$path"; done
        exec chroot "$root" bash -euxc "$@"' inside "$root" "$1"
}

took() { echo "newcomer on $suite: $1 took $SECONDS s" >&2 && SECONDS=0; }

mmdebstrap --quiet --variant=minbase --include=ca-certificates "$suite" "$root" "$mirror"
mkdir "$root/root/cqnotify"
git -C "$project" archive HEAD | tar -x -C "$root/root/cqnotify"
inside 'apt-get -q update; echo "APT::Get::Assume-Yes true;" >/etc/apt/apt.conf.d/yes' # "Y" is what they type
took "a bare root"
inside "cd /root/cqnotify
$(block Install)
cd /
python -c 'import cqnotify; print(cqnotify.__version__, cqnotify.devices())'
cqnotify --help >/dev/null"
took Install
inside "cd /root/cqnotify && ./lab demo"
took "./lab demo"
