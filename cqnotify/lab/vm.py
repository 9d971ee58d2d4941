# SPDX-License-Identifier: MIT
"""One command in a QEMU microVM: boots it, carries streams, signals and the exit status.

Everything happens in one thread around one poll(), and nothing is written to the disk: the
job goes in with the initramfs, in a memfd; console and QEMU's messages stay in memory. QEMU is
killed by the kernel when this process ends, however it ends. guest.c is the other side.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import platform
import re
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import termios
import time
import tty
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from . import kernel, uml
from .base import HERE, LabError, note

PROBE_SECONDS = 10  # a guest that KVM can run says "up" within one or two
GRACE_SECONDS = 10  # for a command to end by itself after Ctrl-C
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WATCH_SECONDS = 5  # between looks at what a kernel that is a process does not say
CLOCK_SLACK = 1.0  # seconds that a line from the guest may be late
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Place:
    """Of one of several hosts: its number, how many there are, and its cable to the switch."""

    number: int
    count: int
    cable: int  # a socket; a datagram is a frame

    @property
    def mac(self) -> str:
        """The address of the NIC itself; network.sh gives v0 its own."""
        return f"52:54:00:98:00:0{self.number}"


@dataclass(frozen=True)
class Machine:
    cache: Path
    kernel: str
    root: Path = Path("/")  # of the guest; it is never written to
    memory: int = 2048
    cpus: int = 2
    accel: str = "tcg"  # kvm, uml
    icount: bool = False  # time counts instructions
    virtual_time: bool = False  # of User Mode Linux: the clock leaps over idle time
    boot_timeout: float = 90
    timeout: float | None = None
    verbose: bool = False
    place: Place | None = None


@dataclass(frozen=True)
class Share:
    """A folder of the host that the guest sees at a place of its own."""

    host: str
    guest: str
    writable: bool = True


@dataclass(frozen=True)
class Job:
    argv: list[str]
    env: dict[str, str]
    cwd: str
    shares: list[Share]
    network: dict[str, str] = field(default_factory=dict)  # variables of network.sh
    mhz: str | None = None  # what /proc/cpuinfo is to say, where the kernel does not
    is_tty: list[bool] = field(default_factory=lambda: [os.isatty(fd) for fd in range(3)])

    def records(self, hostfs_root: Path | None = None) -> bytes:
        """What guest.c reads. `hostfs_root`: of User Mode Linux, which mounts folders by path."""
        words = [f"d{self.cwd}", f"n{HERE / 'network.sh'}"]
        if hostfs_root is not None:
            words += [f"r{hostfs_root}", *(f"h{share.host}" for share in self.shares)]
        words += [f"v{name}={value}" for name, value in self.network.items()]
        words += [f"f{self.mhz}"] if self.mhz else []
        words += [f"a{word}" for word in self.argv]
        words += [f"e{name}={value}" for name, value in self.env.items()]
        words += [f"s{share.guest}" for share in self.shares]
        words += [f"t{fd}" for fd in range(3) if self.is_tty[fd]]
        words.append("w{} {}".format(*window_size()))
        return b"".join(os.fsencode(word) + b"\0" for word in words)


def window_size() -> tuple[int, int]:
    for fd in range(3):
        try:
            rows, columns = struct.unpack("HH4x", fcntl.ioctl(fd, termios.TIOCGWINSZ, b"\0" * 8))
            return rows, columns
        except OSError:
            continue
    return 24, 80


# ---- QEMU --------------------------------------------------------------------------------


class Guest:
    """A QEMU process, the sockets to the guest's ports, and what its console said."""

    NAMES = ("in", "out", "err", "tty", "ctl")

    def __init__(self, machine: Machine, job: Job, accel: str) -> None:
        pairs = {name: socket.socketpair() for name in (*self.NAMES, "console", "messages")}
        self.sockets = {name: pair[0] for name, pair in pairs.items()}
        theirs = {name: pair[1] for name, pair in pairs.items()}
        self.console = bytearray()
        self.window = uml.WINDOW if accel == "uml" else None
        self.uml_cache = machine.cache if accel == "uml" else None
        cables = [machine.place.cable] if machine.place else []
        with open(initrd_fd(machine, job, accel), "rb") as initrd:
            messages = theirs.pop("messages")
            if accel == "uml":
                lines = [theirs[name].fileno() for name in self.NAMES]
                console = theirs["console"].fileno()
                command = uml.command(machine, initrd.fileno(), console, lines)
            else:
                command = qemu_command(machine, job, accel, initrd.fileno(), theirs)
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=messages.fileno(),
                stderr=messages.fileno(),
                pass_fds=[initrd.fileno(), *cables, *(s.fileno() for s in theirs.values())],
                env=uml.environment(machine) if accel == "uml" else None,
                preexec_fn=die_with_parent,
                start_new_session=True,  # the terminal's Ctrl-C is for us alone
            )
        for sock in (messages, *theirs.values()):
            sock.close()
        for sock in self.sockets.values():
            sock.setblocking(False)

    def keep_console(self, name: str) -> None:
        data = receive(self.sockets[name])
        if not data:
            self.sockets.pop(name).close()
        self.console = (self.console + data)[-65536:]

    def console_tail(self) -> str:
        for name in {"console", "messages"} & self.sockets.keys():
            while name in self.sockets and readable(self.sockets[name]):
                self.keep_console(name)
        text = re.sub(r"\x1b[\[(][0-9;?]*[A-Za-z]|\r", "", self.console.decode(errors="replace"))
        return "".join(f"    {line}\n" for line in text.splitlines()[-20:] if line.strip())

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # User Mode Linux is several processes
        self.process.wait()
        if self.uml_cache:
            uml.tidy_up(self.uml_cache)
        for sock in self.sockets.values():
            sock.close()


def receive(sock: socket.socket) -> bytes:
    try:
        return sock.recv(65536)
    except BlockingIOError:
        raise
    except OSError:
        return b""


def readable(sock: socket.socket) -> bool:
    return bool(select.select([sock], [], [], 0)[0])


def die_with_parent() -> None:
    """Runs in the child. The kernel kills QEMU when the lab's (only) thread is gone."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != PARENT:
        os._exit(125)


PARENT = os.getpid()


def initrd_fd(machine: Machine, job: Job, accel: str) -> int:
    if accel == "uml":
        base, records = uml.initramfs(machine.cache), job.records(machine.root)
    else:
        base, records = kernel.initramfs(machine.cache, machine.kernel).read_bytes(), job.records()
    fd = os.memfd_create("initrd")
    with open(fd, "wb", closefd=False) as out:
        out.write(base)
        out.write(kernel.cpio([("job", 0o100600, records)]))
    return fd


def qemu_command(
    machine: Machine, job: Job, accel: str, initrd: int, sockets: dict[str, socket.socket]
) -> list[str]:
    image = machine.cache / "kernels" / machine.kernel / "vmlinux"
    append = "console=ttyS0 quiet panic=-1 oops=panic nowatchdog tsc=reliable nokaslr "
    append += "mitigations=off cryptomgr.notests no_timer_check"
    if accel == "tcg" and not machine.icount:
        append += tsc_frequency()
    command = ["qemu-system-x86_64", "-M", "q35", "-nodefaults", "-no-user-config", "-no-reboot"]
    command += ["-display", "none"]
    command += ["-accel", "kvm", "-cpu", "host"] if accel == "kvm" else []
    command += tcg_options(machine) if accel == "tcg" else []
    command += ["-m", str(machine.memory), "-smp", str(machine.cpus), "-kernel", str(image)]
    command += ["-initrd", f"/proc/self/fd/{initrd}", "-append", append]
    command += ["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]
    if machine.place:
        cable = f"dgram,id=cable,local.type=fd,local.str={machine.place.cable}"
        nic = f"virtio-net-pci,netdev=cable,romfile=,mac={machine.place.mac}"
        command += ["-netdev", cable, "-device", nic]
    for name, sock in sockets.items():
        command += ["-chardev", f"socket,id={name},fd={sock.fileno()}"]
        port = f"virtserialport,chardev={name},name=lab.{name}"
        command += ["-serial", "chardev:console"] if name == "console" else ["-device", port]
    root = Share(str(machine.root), "/", writable=False)
    for tag, share in [
        ("root", root),
        *((f"share{number}", share) for number, share in enumerate(job.shares)),
    ]:
        fsdev = f"local,id={tag},path={share.host.replace(',', ',,')},security_model=none"
        fsdev += ",multidevs=remap" + ("" if share.writable else ",readonly=on")
        command += ["-fsdev", fsdev, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    return command


def tsc_frequency() -> str:
    """For the kernel's command line. An emulated guest reads this machine's TSC, and would compare
    it with an emulated timer: on a busy machine it then took its clock to be many times slower."""
    try:
        with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_WRITE | mmap.PROT_EXEC) as code:
            # rdtsc; shl $32, %rdx; or %rdx, %rax; ret
            code.write(bytes.fromhex("0f31 48c1e220 4809d0 c3"))
            page = ctypes.c_char.from_buffer(code)
            rdtsc = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(page))
            frequency = ticks_per_ms(rdtsc)
            del page  # which keeps the mapping open
    except OSError:  # memory that is written and run is forbidden here: as without us
        return ""
    return f" tsc_early_khz={frequency}"


def ticks_per_ms(read_ticks: Callable[[], int]) -> int:
    def read() -> tuple[int, int]:
        """Both clocks at one moment: the closest of some readings."""
        readings = []
        for _ in range(20):
            before, ticks, after = time.monotonic_ns(), read_ticks(), time.monotonic_ns()
            readings.append((after - before, (before + after) // 2, ticks))
        return min(readings)[1:]

    start, first = read()
    time.sleep(0.05)
    end, last = read()
    return (last - first) * 1_000_000 // (end - start)


def tcg_options(machine: Machine) -> list[str]:
    if not machine.icount:
        return ["-accel", "tcg,thread=multi", "-cpu", "max"]
    # Without the CPU's fast string moves: each byte of one would count as an instruction.
    cpu = ["-accel", "tcg,thread=single", "-cpu", "max,-erms,-fsrm"]
    return [*cpu, "-icount", "shift=0,sleep=off"]


# ---- streams -----------------------------------------------------------------------------


class Relay:
    """Carries bytes from one descriptor to another, and counts what came in.

    The host's ends stay in blocking mode, because others share them: a pipe or terminal that
    poll() calls writable takes PIPE_BUF bytes without blocking.
    """

    def __init__(self, source: int, target: int, window: int | None = None) -> None:
        """`window`: how much may be under way that nobody has said to have `taken`."""
        self.source, self.target = source, target
        self.window, self.taken = window, 0
        self.buffer = b""
        self.received = 0
        self.ended = self.broken = False
        mode = os.fstat(target).st_mode
        self.chunk = select.PIPE_BUF if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) else 65536

    def wants(self) -> tuple[int, int] | None:
        if self.buffer:
            return self.target, select.POLLOUT
        return None if self.ended or not self.room() else (self.source, select.POLLIN)

    def room(self) -> int:
        return 65536 if self.window is None else self.taken + self.window - self.received

    def move(self) -> None:
        if self.buffer:
            self.write()
        elif not self.ended and self.room():
            self.read()

    def read(self) -> None:
        try:
            data = os.read(self.source, self.room())
        except BlockingIOError:
            return
        except OSError:  # a terminal that hung up
            data = b""
        self.received += len(data)
        self.ended = not data
        self.buffer = b"" if self.broken else data

    def write(self) -> None:
        try:
            self.buffer = self.buffer[os.write(self.target, self.buffer[: self.chunk]) :]
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EPIPE and error.errno != errno.EIO:
                note(f"cannot write the command's output: {error.strerror}")
            self.broken, self.buffer = True, b""


class RawTerminal:
    """The user's terminal hands every key to the guest while the command runs."""

    def __init__(self) -> None:
        self.saved: list[object] | None = None

    def enter(self) -> None:
        self.saved = termios.tcgetattr(0)
        tty.setraw(0, termios.TCSANOW)

    def leave(self) -> None:
        if self.saved is not None:
            termios.tcsetattr(0, termios.TCSANOW, self.saved)  # type: ignore[arg-type]
            self.saved = None


# ---- a run -------------------------------------------------------------------------------


class Signals:
    """Signals to the lab, as numbers in a list; their arrival ends a poll()."""

    def __init__(self) -> None:
        self.pending: list[int] = []
        self.parent = os.getppid()
        self.wake, self.wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        ignored = [number for number in FORWARDED if signal.getsignal(number) == signal.SIG_IGN]
        for number in (*FORWARDED, signal.SIGWINCH, signal.SIGUSR2):
            if number not in ignored:
                signal.signal(number, self.note)
        # The process that started the lab is gone, and nobody wants its result, unless it runs
        # under nohup. The signal also comes when only the thread that started it ends.
        if self.parent != 1 and signal.SIGHUP not in ignored:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGUSR2)
            if os.getppid() != self.parent:
                raise LabError("the process that started the lab is gone", 143)

    def note(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGUSR2:
            self.pending.append(number)
        elif os.getppid() != self.parent:
            self.pending += [signal.SIGTERM, signal.SIGTERM]

    def take(self) -> list[int]:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)
        taken, self.pending = self.pending, []
        return taken


class NotUp(Exception):
    """The guest did not come up, or not in time; nothing of the job has begun."""


class GuestFailed(LabError):
    """It ended, or could not do what it should."""


class Session:
    """One boot of the guest, to the end of its command."""

    def __init__(self, machine: Machine, job: Job, signals: Signals) -> None:
        self.machine, self.job, self.signals = machine, job, signals
        self.terminal = RawTerminal()
        self.phase = "boot"
        now = time.monotonic()
        self.deadlines = {"boot": now + machine.boot_timeout}
        if machine.timeout:
            self.deadlines["run"] = now + machine.timeout
        self.told: set[str] = set()
        self.interrupted: list[int] = []
        self.started = now
        self.clocks = (0.0, 0.0)  # ours and the guest's, when it was up
        self.orders = b""
        self.heard = b""
        self.result: tuple[int, list[int]] | None = None
        self.stdin: Relay | None = None
        self.outputs: dict[str, Relay] = {}
        self.to_tty: Relay | None = None
        self.guest = Guest(machine, job, machine.accel)

    def run(self) -> int:
        try:
            while not self.complete():
                self.step()
            assert self.result is not None
            return self.result[0]
        finally:
            self.guest.kill()
            self.terminal.leave()

    def comes_up(self) -> bool:
        """Boots the kernel, and no more."""
        try:
            while self.phase == "boot":
                self.step()
            return True
        except (NotUp, GuestFailed):
            return False
        finally:
            self.guest.kill()

    # -- one turn of the loop

    def step(self) -> None:
        poller = select.poll()
        wanted: dict[int, int] = {self.signals.wake: select.POLLIN}
        for name in {"console", "messages", "ctl"} & self.guest.sockets.keys():
            wanted[self.guest.sockets[name].fileno()] = select.POLLIN
        if self.orders:
            wanted[self.guest.sockets["ctl"].fileno()] = select.POLLIN | select.POLLOUT
        for relay in self.relays():
            if want := relay.wants():
                wanted[want[0]] = wanted.get(want[0], 0) | want[1]
        for fd, events in wanted.items():
            poller.register(fd, events)
        wait = min(self.deadlines.values()) - time.monotonic() if self.deadlines else 3600
        ready = {fd for fd, _ in poller.poll(max(0, wait) * 1000)}
        self.handle_signals()
        for relay in self.relays():
            if (want := relay.wants()) and want[0] in ready:
                relay.move()
        for name in ("console", "messages"):
            if name in self.guest.sockets and self.guest.sockets[name].fileno() in ready:
                self.guest.keep_console(name)
        if self.guest.sockets["ctl"].fileno() in ready:
            self.exchange()
        self.tell_ends()
        self.check_deadlines()

    def relays(self) -> list[Relay]:
        inputs = [relay for relay in (self.stdin, self.to_tty) if relay and not self.result]
        return inputs + list(self.outputs.values())

    def complete(self) -> bool:
        if self.result is None:
            return False
        return all(
            relay.ended or (relay.received >= count and not relay.buffer)
            for relay, count in zip(self.outputs.values(), self.result[1], strict=True)
        )

    def order(self, line: str) -> None:
        self.orders += line.encode() + b"\n"

    def exchange(self) -> None:
        """Talks over the control port."""
        control = self.guest.sockets["ctl"]
        try:
            if self.orders:
                self.orders = self.orders[control.send(self.orders) :]
            data = control.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise self.end()
        *lines, self.heard = (self.heard + data).split(b"\n")
        for line in lines:
            self.hear(line.decode(errors="replace"))

    def hear(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if self.machine.verbose:
            note(f"guest after {time.monotonic() - self.started:.1f} s: {line}")
        if word == "up":
            self.phase = "up"
            self.clocks = time.monotonic(), float(rest)
        elif word == "ready":
            self.compare_clocks(float(rest))
            self.phase = "run"
            self.deadlines.pop("boot", None)
            if self.machine.accel == "uml":
                self.deadlines["watch"] = time.monotonic() + WATCH_SECONDS
            self.order("go")
            self.connect()
        elif word == "took":
            name, count = rest.split()
            if relay := {"in": self.stdin, "tty": self.to_tty}[name]:
                relay.taken = int(count)
        elif word == "fail":
            raise self.failure(f"the guest could not {rest}")
        elif word == "exit":
            status, *counts = (int(number) for number in rest.split())
            self.result = (status, counts)
            self.deadlines.pop("run", None)
            self.deadlines.pop("watch", None)

    def compare_clocks(self, now: float) -> None:
        """Before the command begins: all timeouts in a guest with a wrong clock are wrong."""
        ours, guests = time.monotonic() - self.clocks[0], now - self.clocks[1]
        if self.machine.icount or self.machine.virtual_time:
            return  # its clock is not meant to keep up with ours
        if abs(guests - ours) > CLOCK_SLACK + ours / 4:
            raise NotUp(f"the microVM's clock went {guests:.1f} s in {ours:.1f} s")

    def connect(self) -> None:
        """The command starts: from now on the streams are its own."""
        ports = {name: sock.fileno() for name, sock in self.guest.sockets.items()}
        is_tty = self.job.is_tty
        screen = next((fd for fd in (1, 2, 0) if is_tty[fd]), 1)
        self.outputs = {
            "out": Relay(ports["out"], 1),
            "err": Relay(ports["err"], 2),
            "tty": Relay(ports["tty"], screen),
        }
        if is_tty[0]:
            self.to_tty = Relay(0, ports["tty"], self.guest.window)
            self.terminal.enter()
        else:
            self.stdin = Relay(0, ports["in"], self.guest.window)

    def tell_ends(self) -> None:
        """Ends of streams travel by the control port, with a count, behind all their bytes."""
        if self.stdin and self.stdin.ended and not self.stdin.buffer:
            self.order(f"eof {self.stdin.received}")
            self.stdin = None
        for name, relay in self.outputs.items():
            if relay.broken and name not in self.told and name != "tty":
                self.order(f"close {name}")  # and what is still under way is discarded
                self.told.add(name)

    # -- signals, deadlines, failures

    def handle_signals(self) -> None:
        for number in self.signals.take():
            if number == signal.SIGWINCH:
                self.order("size {} {}".format(*window_size()))
                continue
            self.interrupted.append(number)
            if self.phase != "run" or len(self.interrupted) > 1:
                raise LabError(f"stopped by {signal.Signals(number).name}", 128 + number)
            self.order(f"signal {number}")
            self.deadlines["grace"] = time.monotonic() + GRACE_SECONDS

    def check_deadlines(self) -> None:
        now = time.monotonic()
        passed = [name for name, moment in self.deadlines.items() if now >= moment]
        if "run" in passed:
            raise LabError(f"the command took longer than {self.machine.timeout:g} s", 124)
        if "grace" in passed:
            code = 128 + self.interrupted[0]
            raise LabError(f"the command went on for {GRACE_SECONDS} s; stopped it", code)
        if "watch" in passed:
            if why := uml.stuck(self.guest.process.pid):
                raise LabError(why)
            self.deadlines["watch"] = now + WATCH_SECONDS
        if "boot" in passed:
            message = f"the microVM did not come up within {self.machine.boot_timeout:g} s"
            if self.phase == "up":
                message += ", though its kernel did"
            raise NotUp(str(self.failure(message)))

    def end(self) -> Exception:
        """QEMU is gone. Unless it refused to start, another boot loses nothing as long as the
        command has not begun."""
        message = "the microVM ended unexpectedly"
        status = self.guest.process.wait()
        if status < 0 and self.machine.accel != "uml":  # which says more than its signal
            message += f" (QEMU by {signal.Signals(-status).name})"
        failure = self.failure(message)
        return NotUp(str(failure)) if self.phase != "run" and status <= 0 else failure

    def failure(self, message: str) -> GuestFailed:
        tail = self.guest.console_tail()
        if panic := re.search(rb"(Kernel panic - [^\r\n]*)", self.guest.console):
            message += f" ({panic[1].decode(errors='replace')})"
        return GuestFailed(message + (". Its last words:\n" + tail.rstrip("\n") if tail else ""))


# ---- KVM ---------------------------------------------------------------------------------


def kvm_usable() -> bool:
    return os.access("/dev/kvm", os.R_OK | os.W_OK)


class KvmVerdict:
    """Whether this guest boots under this host's KVM: found out once per host boot."""

    def __init__(self, cache: Path, kernel: str | None) -> None:
        self.path = cache / "kvm"
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.key = f"{platform.release()} {boot} {kernel}"

    def read(self) -> str | None:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return next((s.rpartition(" ")[2] for s in lines if s.rpartition(" ")[0] == self.key), None)

    def write(self, verdict: str) -> None:
        boot = self.key.split()[1]
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        kept = [s for s in lines if boot in s and s.rpartition(" ")[0] != self.key]
        part = self.path.with_suffix(f".{os.getpid()}")
        part.write_text("\n".join([*kept, f"{self.key} {verdict}"]) + "\n")
        part.rename(self.path)


def try_kvm(machine: Machine) -> None:
    """Finds out, and writes it down."""
    check_host(machine)
    note(f"microVM, kernel {machine.kernel}, trying KVM")
    tried = replace(machine, accel="kvm", boot_timeout=PROBE_SECONDS)
    works = Session(tried, Job(["true"], {}, "/", []), Signals()).comes_up()
    KvmVerdict(machine.cache, machine.kernel).write("yes" if works else "no")
    if not works:
        note("the guest does not come up under KVM here: without it, now and from now on")


# ---- the door ----------------------------------------------------------------------------


def check_host(machine: Machine) -> None:
    if platform.machine() != "x86_64":
        raise LabError(f"the microVM is for x86-64 only, and this machine is {platform.machine()}")
    if machine.accel != "uml" and not shutil.which("qemu-system-x86_64"):
        raise LabError("QEMU is missing; install it with: apt-get install qemu-system-x86")
    found = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())
    available = int(found[1]) // 1024 if found else machine.memory
    if available < machine.memory:
        raise LabError(
            f"too little memory: the guest wants {machine.memory} MB and {available} MB are "
            "available; give it less with --mem MB (768 or more)"
        )


def run(machine: Machine, job: Job) -> int:
    """Runs the job; returns the exit status that ./lab shall end with."""
    check_host(machine)
    if machine.accel == "uml":
        note(f"kernel {machine.kernel}, as a process of this machine")
    else:
        how = "KVM" if machine.accel == "kvm" else "emulated"
        note(f"microVM, kernel {machine.kernel}, {how}")
    return boot(machine, job, Signals())


def boot(machine: Machine, job: Job, signals: Signals) -> int:
    """Once more if the guest hangs or panics as it boots, if its clock is wrong, or QEMU crashes:
    emulated, on a busy machine, that happens now and then."""
    try:
        return Session(machine, job, signals).run()
    except NotUp as e:
        note(str(e))
        note("booting it once more")
    try:
        return Session(machine, job, signals).run()
    except NotUp as e:
        raise LabError(str(e)) from None
