# SPDX-License-Identifier: MIT
"""The lab: runs a command where there is an RDMA device, on a kernel of its own if need be.

Users call `cqnotify lab` or, in a checkout, `./lab`; the modules are no interface. They need only
the standard library, and neither the C core nor libibverbs, so `./lab` can run them from sources
that are not built (__main__.py).

    cli.py                the command `cqnotify lab`
    driver.py             the actions and options that it and ./lab share
    backend.py            the choice between KVM, a kernel that is a process, and emulation
    prerequisites.py      what is missing on this machine, and the packages that have it
    vm.py, guest.c        the two ends of a guest: streams, signals, exit code
    kernel.py, debian.py  kernels for QEMU, from Debian's packages
    uml.py                kernels that run as processes, built here or installed by cqnotify-lab
    network.sh            makes the RDMA devices
    hosts.py              several hosts: hosts_run.py for a command line, hosts_serve.py for pytest;
                          agent.py runs inside each, switch.py between them
    virtual_hosts.py      several hosts with one virtual clock (timetravel.py), whose network cards
                          are ours (vhost.py) and whose randomness has a seed (seeded.c);
                          virtual_run.py for a command line
    base.py               errors, notes, the lock, commands of this machine
"""
