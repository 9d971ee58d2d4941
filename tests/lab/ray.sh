#!/bin/sh
# SPDX-License-Identifier: MIT
# The tests of cqnotify.ray, with Ray from PyPI in build/ray: tests/lab/ray.sh [PYTEST ARGS]
set -eu
cd "$(dirname "$0")/../.."
./lab build >/dev/null # which would empty the folder
python3 -m pip install --quiet --upgrade --target build/ray 'ray>=2.60'
exec ./lab -e "PYTHONPATH=$PWD/build/ray" test -m ray "$@"
