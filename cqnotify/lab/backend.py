# SPDX-License-Identifier: MIT
"""Which backend runs a command where the machine has no device: KVM, a kernel that is a process of
this machine (see uml.py), or emulation. The first of them that works here and has what was asked
for is taken, and of the first two the one whose kernel is at hand.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

from . import kernel, uml, vm
from .base import LabError, note

TO_TRY = "auto"  # whether KVM boots the guest here is not known yet


class Backend(NamedTuple):
    accel: str  # kvm, uml, tcg or TO_TRY
    kernel: str | None  # None: it has yet to be fetched
    why: str | None = None  # the command is emulated, which nobody has asked for

    @property
    def unbuilt(self) -> bool:
        """A kernel that runs as a process would be the better one, if there were one."""
        return self.why == uml.ADVICE


def foresee(options: argparse.Namespace) -> Backend:
    """The backend, as far as that can be told without trying or fetching anything."""
    if options.accel == "uml":
        return Backend("uml", built(options))
    version = kernel.newest(options.cache, options.kernel, options.userland)
    microvm = Backend(accelerator(options, version), version)
    if microvm.accel == "kvm" or wants_microvm(options):
        return microvm
    process = uml.choose(options.cache, options.kernel)
    refusal = uml.refusal(process)
    if process and not refusal and not (version and microvm.accel == TO_TRY):
        return Backend("uml", process)
    if microvm.accel == TO_TRY or options.kernel:
        return microvm
    return microvm._replace(why=f"{refusal}: emulating" if refusal else uml.ADVICE)


def settle(
    options: argparse.Namespace,
    try_kvm: Callable[[str], None],
    build: Callable[[], object] | None = None,
) -> Backend:
    """The backend, and its kernel, fetched if need be; says why it is emulation. `try_kvm` notes
    for later whether this kernel boots under KVM, `build` makes one that runs as a process."""
    backend = foresee(options)
    if backend.accel == TO_TRY:
        try_kvm(kernel.choose(options.cache, options.kernel, options.userland))
        backend = foresee(options)
    if build and backend.unbuilt:
        try:
            build()
            backend = foresee(options)
        except LabError as error:
            backend = backend._replace(why=f"{error}: emulating")
    if backend.unbuilt and (unfit := uml.unfit()):
        note(unfit)
    if backend.why:
        note(backend.why)
    if backend.kernel is None:
        version = kernel.choose(options.cache, options.kernel, options.userland)
        backend = backend._replace(kernel=version)
    return backend


def wants_microvm(options: argparse.Namespace) -> bool:
    """Whether the options ask for something that a kernel as a process does not have."""
    return bool(
        options.accel or options.icount or options.userland or (options.cpus and options.cpus > 1)
    )


def accelerator(options: argparse.Namespace, version: str | None) -> str:
    """Return the accelerator of the microVM with this kernel."""
    if options.icount and options.accel == "kvm":
        raise LabError(
            "--icount counts emulated instructions: it cannot be combined with --accel kvm"
        )
    if options.accel == "kvm" and not vm.kvm_usable():
        raise LabError("--accel kvm: /dev/kvm is not there, or not for this user")
    if options.accel == "kvm":
        return "kvm"
    if options.icount or options.accel == "tcg" or not vm.kvm_usable():
        return "tcg"
    verdict = vm.KvmVerdict(options.cache, version).read()
    return {"yes": "kvm", "no": "tcg", None: TO_TRY}[verdict]


def built(options: argparse.Namespace) -> str:
    """The kernel for --uml."""
    if options.icount:
        raise LabError("--icount counts emulated instructions: it cannot be combined with --uml")
    if options.cpus and options.cpus > 1:
        raise LabError(f"--uml has one CPU, not {options.cpus}")
    version = uml.choose(options.cache, options.kernel)
    if why := uml.refusal(version):
        raise LabError(why)
    if version is None:
        raise LabError(uml.not_built(options.kernel))
    return version
