# SPDX-License-Identifier: MIT
"""libibverbs is loaded when a device is first asked for; what is missing is said in words.

A fake takes its place for what no rdma-core that is installed here does: it lacks functions,
or is something else by that name.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import cqnotify._core as core

PROJECT = Path(__file__).parents[2]
NAMES = re.findall(r"\b_?ibv_\w+(?=, \\?\s*\()", (PROJECT / "csrc/base/library.c").read_text())

PROGRAM = """
import os
import cqnotify

def libraries():
    return {line.split()[-1] for line in open("/proc/self/maps") if "libibverbs.so" in line}

"""

SAY = (
    PROGRAM
    + """
for call in cqnotify.devices, cqnotify.Context, cqnotify.fork_status:
    try:
        call()
    except cqnotify.VerbsError as e:
        print(e.errno, e.verb, e.strerror)
"""
)


def run(program: str, library_path: Path | None = None, within: Sequence[str] = ()) -> str:
    env = dict(os.environ)
    if library_path is not None:
        env["LD_LIBRARY_PATH"] = str(library_path)
    command = [*within, sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_beside(classes: Path, program: str, library_path: Path | None = None) -> str:
    """The same, with a folder in the place of /sys/class."""
    script = 'mount --bind "$1" /sys/class && shift && exec "$@"'
    own = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
    return run(program, library_path, [*own, "sh", "-c", script, "sh", str(classes)])


def compile_library(folder: Path, *sources: str) -> None:
    files = [folder / f"{n}.c" for n in range(len(sources))]
    for file, source in zip(files, sources, strict=True):
        file.write_text(source)
    command = ["gcc", "-shared", "-fPIC", "-o", str(folder / "libibverbs.so.1"), *map(str, files)]
    subprocess.run(command, check=True)


def test_the_import_does_not_load_it() -> None:
    program = PROGRAM + "print(len(libraries()))\ncqnotify.devices()\nprint(len(libraries()))"
    assert run(program) == "0\n1\n"


def test_the_core_needs_no_library_of_rdma() -> None:
    path = core.__file__
    assert path is not None
    listed = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, check=True)
    assert "libc.so.6" in listed.stdout
    assert not re.search(r"NEEDED.*(ibverbs|rdmacm)", listed.stdout)
    exported = subprocess.run(["nm", "-D", path], capture_output=True, text=True, check=True)
    assert "PyInit__core" in exported.stdout
    assert "ibv_" not in exported.stdout  # neither asked for, nor offered to others


def test_where_it_cannot_be_loaded_the_error_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "libibverbs.so.1").write_bytes(b"")
    lines = run(SAY, tmp_path).splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith(f"{errno.ELIBACC} ibv_get_device_list ibv_get_device_list: ")
        assert "needs libibverbs.so.1 (Debian, Ubuntu: apt-get install libibverbs1 ibv" in line
        assert "Fedora, RHEL: dnf install libibverbs): " in line
        assert str(tmp_path) in line  # the linker's own words end it


def test_another_library_of_that_name_is_refused(tmp_path: Path) -> None:
    compile_library(tmp_path, "void ibv_get_device_list(void) {}")
    said = run(SAY, tmp_path).splitlines()
    assert len(said) == 3
    for line in said:
        assert re.search(r"libibverbs.so.1 has no ibv_\w+\(\): it is not that of rdma-core", line)


NO_CLASS = """
#include <errno.h>
#include <stddef.h>

void *ibv_get_device_list(int *n)
{
    errno = ENOSYS; /* whatever the reason is, as libibverbs says it */
    return NULL;
}
"""


LIST_AND_OPEN = """
import cqnotify
for call in cqnotify.devices, cqnotify.Context:
    try:
        print(call())
    except cqnotify.VerbsError as e:
        print(e)
"""


@pytest.mark.parametrize(
    ("make", "listed", "opened"),
    [
        (lambda path: None, "[]", "ibv_open_device: No such device: this machine has no RDMA"),
        (Path.mkdir, "[]", "ibv_open_device: No such device: this machine has no RDMA"),
        (Path.touch, "ibv_get_device_list: Not a directory: /sys/class/infiniband_verbs", None),
        (lambda path: path.symlink_to(path), "ibv_get_device_list: Too many levels of", None),
    ],
    ids=["none", "empty", "file", "loop"],
)
def test_a_class_that_cannot_be_read_is_no_absence_of_devices(
    tmp_path: Path, make: Callable[[Path], None], listed: str, opened: str | None
) -> None:
    classes = tmp_path / "class"
    classes.mkdir()
    make(classes / "infiniband_verbs")
    rest = {*NAMES} - {"ibv_get_device_list"}
    stubs = "".join(f"long {name}(void) {{ return 0; }}\n" for name in sorted(rest))
    compile_library(tmp_path, NO_CLASS, stubs)
    lines = run_beside(classes, LIST_AND_OPEN, tmp_path).splitlines()
    assert len(lines) == 2
    assert listed in lines[0]
    assert (opened or listed) in lines[1]


# ---- one that is older than some verbs -------------------------------------------------------

# It has a device that carries no data, and of the rest of the functions the names.
DEVICE = PROJECT / "benchmarks/c/fake_verbs.c"
SHARED = DEVICE.with_name("one_device.h")  # which it includes
DEFINED = re.compile(r"^(?:\w.*?\b|NOT_CALLED\()(ibv_\w+)[()]", re.M)
NEWER = {"ibv_qp_to_qp_ex", "ibv_reg_mr_iova2", "_ibv_query_gid_ex", "_ibv_query_gid_table"}

ASK = """
import cqnotify

ctx = cqnotify.Context()
pd = cqnotify.PD(ctx)
for call in ctx.query_gid_table, lambda: ctx.query_gid(0), lambda: cqnotify.MR(pd, bytearray(64)):
    try:
        call()
    except cqnotify.VerbsError as e:
        print(e.errno == 38, e.verb, e.strerror)
print(cqnotify.CompletionChannel(ctx).closed)
"""


def test_a_verb_that_an_older_library_lacks_is_refused_in_words(tmp_path: Path) -> None:
    rest = {*NAMES} - NEWER - {*DEFINED.findall(DEVICE.read_text() + SHARED.read_text())}
    stubs = "".join(f"long {name}(void) {{ return 0; }}\n" for name in sorted(rest))
    device = f'#define ibv_reg_mr_iova2 left_out\n#include "{DEVICE}"\n'
    compile_library(tmp_path, device, stubs)
    (tmp_path / "libibverbs.so.1").rename(tmp_path / "libibverbs.so.1.5.22.3")
    (tmp_path / "libibverbs.so.1").symlink_to("libibverbs.so.1.5.22.3")
    table, gid, mr, closed = run(ASK, tmp_path).splitlines()
    old = "this libibverbs (rdma-core 22.3) has no"
    assert f"True ibv_query_gid_table ibv_query_gid_table: {old} _ibv_query_gid_table()" in table
    assert f"True ibv_query_gid_ex ibv_query_gid_ex: {old} _ibv_query_gid_ex(), which came" in gid
    assert "with rdma-core 32" in gid
    assert f"True ibv_reg_mr ibv_reg_mr: {old} ibv_reg_mr_iova2(), which came with rdma-c" in mr
    assert "with rdma-core 28" in mr
    assert closed == "False"  # all else works


# ---- a fork while a thread is inside ---------------------------------------------------------

# It has a lock, as libibverbs has. A second thread holds it until the process has forked, or the
# main thread sleeps as it is about to fork.
HOLDER = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool has_forked;

static void note_fork(void)
{
    has_forked = true;
}

__attribute__((constructor)) static void watch(void)
{
    pthread_atfork(NULL, note_fork, NULL);
}

static bool main_thread_sleeps(void)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", getpid());
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    return n > 0 && strstr(text, ") S ") != NULL;
}

void *ibv_get_device_list(int *n)
{
    pthread_mutex_lock(&lock);
    if (gettid() != getpid()) {
        char byte = 0;
        if (write(atoi(getenv("INSIDE")), &byte, 1) != 1 ||
            read(atoi(getenv("FORKING")), &byte, 1) != 1) {
            abort();
        }
        while (!has_forked && !main_thread_sleeps()) {
            sched_yield();
        }
    }
    pthread_mutex_unlock(&lock);
    *n = 0;
    return calloc(1, sizeof(void *));
}
"""

FORK = """
import contextlib, os, signal, threading
import cqnotify

def call():
    with contextlib.suppress(cqnotify.VerbsError):  # there is no device
        cqnotify.{call}()

inside, forking = os.pipe(), os.pipe()
os.environ |= {{"INSIDE": str(inside[1]), "FORKING": str(forking[0])}}
os.register_at_fork(before=lambda: os.write(forking[1], b"x"))
thread = threading.Thread(target=call)
thread.start()
os.read(inside[0], 1)
pid = os.fork()
if pid == 0:
    signal.alarm(60)  # ends a child that hangs
    call()
    os._exit(0)
thread.join()
print(os.waitpid(pid, 0)[1])
"""


@pytest.mark.parametrize("call", ["devices", "Context"])
def test_a_fork_waits_for_a_thread_that_holds_a_lock_of_the_library(
    tmp_path: Path, call: str
) -> None:
    rest = {*NAMES} - {"ibv_get_device_list"}
    stubs = "".join(f"long {name}(void) {{ return 0; }}\n" for name in sorted(rest))
    compile_library(tmp_path, HOLDER, stubs)
    assert run(FORK.format(call=call), tmp_path) == "0\n"


# ---- a machine without a device --------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "uverbs", "said"),
    [
        ([], [], "this machine has no RDMA device. Hardware needs its driver"),
        (["mlx5_0"], ["abi_version"], "the kernel has mlx5_0, but .* load the module ib_uverbs"),
        (["mlx5_0"], ["abi_version", "uverbs0"], "libibverbs has no provider .*libibverbs\\.d"),
    ],
)
def test_what_is_missing_is_told_apart(
    tmp_path: Path, devices: list[str], uverbs: list[str], said: str
) -> None:
    """By what the kernel shows in /sys/class, or, here, another folder in its place."""
    for folder, names in (("infiniband", devices), ("infiniband_verbs", uverbs)):
        for name in names:
            (tmp_path / folder / name).mkdir(parents=True)
    program = "from cqnotify._core import why_no_device; print(why_no_device())"
    assert re.search(said, run_beside(tmp_path, program))
