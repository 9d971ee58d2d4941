#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs the tests of cqnotify.torch: in one guest, and between two hosts.
#   torch.sh [PIP OPTIONS]     which say where pip finds a torch for CPUs, see tests/pytorch/environment.py
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=$PWD/build/torch
python=$(./lab build)/bin/python
[ -e "$folder/complete" ] || "$python" tests/pytorch/environment.py "$folder" "$@"
touch "$folder/complete"
./lab -e "PYTHONPATH=$folder" hosts 2 -- python tests/pytorch/exchange.py
./lab run -e "PYTHONPATH=$folder" -- python -m pytest -q -p no:cacheprovider -m torch tests/pytorch
