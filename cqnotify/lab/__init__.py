# SPDX-License-Identifier: MIT
"""The lab: runs a command where there is an RDMA device, on a kernel of its own if need be.

`cqnotify lab` and the project's `./lab` are its fronts; what these do is the interface, and the
modules are not. They need the standard library alone, and neither the C core nor libibverbs: they
run from sources that are not built, see __main__.py.
"""
