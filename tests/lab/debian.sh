#!/usr/bin/env bash
# The Debian package: dpkg-buildpackage makes it on a Debian of its own, lintian finds no error in it,
# and what apt installs on a bare one runs. Usage: debian.sh SUITE [FOLDER], as root; needs mmdebstrap.
# FOLDER is where the package goes.
set -euo pipefail

suite=$1 out=${2-}
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
bare=$work/bare builder=$work/builder
project=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/lab/roots.sh
. "$(dirname "$0")/roots.sh"

SECONDS=0
make_root "$bare"
cp -a "$bare" "$builder"
mkdir -p "$builder/root/cqnotify"
git -C "$project" archive HEAD | tar -x -C "$builder/root/cqnotify"
mv "$builder/root/cqnotify/packaging/debian" "$builder/root/cqnotify/debian"
install "$builder" build-essential lintian
quietly inside "$builder" 'cd /root/cqnotify
apt-get -q -y build-dep --no-install-recommends .
dpkg-buildpackage -us -uc -b'
# A name, an address and the request for a package are those of whoever uploads it.
inside "$builder" 'cd /root && lintian --allow-root --fail-on error,warning \
    --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog,initial-upload-closes-no-bugs *.changes'
[ -z "$out" ] || cp "$builder"/root/*.deb "$out"

cp "$builder"/root/python3-cqnotify_*.deb "$bare/root"
install "$bare" /root/python3-cqnotify_*.deb # what it recommends is not there
says "$bare" "cqnotify $(grep -oP '(?<=^cqnotify \()[^-]+' "$project/packaging/debian/changelog" | head -1)" 'cqnotify --version'
says "$bare" "cqnotify" 'cqnotify devices' # its message, or devices
says "$bare" "apt-get install librdmacm1" 'python3 -c "from cqnotify._core import CMChannel; CMChannel()"'
install "$bare" ibverbs-providers librdmacm1
says "$bare" "devices: [" 'python3 -c "import cqnotify; print(\"devices:\", cqnotify.devices())"'
echo "Debian package on $suite: all holds, took $SECONDS s" >&2
