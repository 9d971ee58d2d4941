# SPDX-License-Identifier: MIT
"""These tests need torch: environment.py tells where it comes from. Without it there are none."""

from importlib.util import find_spec

# What there is of torch without its own package would be this repository's folders.
if find_spec("torch") is None or find_spec("torch.distributed._transport") is None:
    collect_ignore_glob = ["test_*.py"]
