# SPDX-License-Identifier: MIT
"""The command line: `cqnotify`, `python -m cqnotify`. Each command is a module of this package.

A command's module has `add_parser(commands)`, which calls `add_command`, and `run(args)`, which
returns an exit code. Modules that only some commands need are imported when these run.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final, NoReturn, TextIO

from .. import AsyncEventError, CompletionError, __version__
from .._core import why_no_device
from ..attrs import PortAttr
from ..context import Context, needs_rdma_cm
from ..context import devices as list_devices  # the command `devices` is a module of that name
from ..enums import PortState

__all__ = ["CANNOT_RUN", "FAILED", "OK", "USAGE", "CommandError", "main"]

# The names of their modules, in the order of the help; `lab`, which is not here, comes last.
COMMANDS: Final = (
    "devices",
    "pingpong",
    "latency",
    "bandwidth",
    "conformance",
    "watch",
    "demo",
    "check",
    "trace",
    "chaos",
)
# Those of them that run a program, and need no device themselves.
OBSERVERS: Final = ("check", "trace", "chaos")

OK, FAILED, USAGE, CANNOT_RUN = 0, 1, 2, 3
MISUSE: Final = 66  # of the verbs, by an observed program
LONGEST: Final = 2_000_000  # seconds
INTERRUPTED, BROKEN_PIPE, TERMINATED = (
    128 + number for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)
)

EXIT_CODES: Final = """\
exit codes:
  0    everything went well
  1    the command failed, took too long, or got wrong data
  2    wrong usage
  3    nothing to run on: no such RDMA device, no port that is up, or a program is not installed
  66   check, chaos: the program ran, and misused the verbs; otherwise its own exit code
  130  interrupted by Ctrl-C
  141  the reader of the output has gone
  143  ended by SIGTERM
"""


class CommandError(Exception):
    """The command cannot go on; has a message for the terminal, and an exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    try:
        with _termination(), _flushed():
            args = _parser().parse_args(argv)
            return int(args.run(args))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return BROKEN_PIPE
    except CommandError as e:
        return _complain(e, e.code)
    except (OSError, LookupError, CompletionError, AsyncEventError) as e:
        lacks_library = isinstance(e, OSError) and e.errno == errno.ELIBACC
        return _complain(e, CANNOT_RUN if lacks_library else FAILED)
    except MemoryError as e:  # the messages that the options ask for are too many or too large
        return _complain(CommandError(str(e) or "out of memory"), FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cqnotify",
        description="RDMA completion notification.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cqnotify {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=CommandParser)
    _add_commands(commands)
    return parser


def _add_commands(commands: Any) -> None:
    """Add the modules of COMMANDS and `lab`, imported by name, so a frozen program has them."""
    from . import (
        bandwidth,
        chaos,
        check,
        conformance,
        demo,
        devices,
        lab,
        latency,
        pingpong,
        trace,
        watch,
    )

    found = (
        devices,
        pingpong,
        latency,
        bandwidth,
        conformance,
        watch,
        demo,
        check,
        trace,
        chaos,
        lab,
    )
    for command in found:
        command.add_parser(commands)


class CommandParser(argparse.ArgumentParser):
    """The parser of one command.

    It refuses unknown arguments itself. argparse leaves that to the main parser, whose usage does
    not show the command's options.
    """

    takes_device = False
    takes_words = False  # as they are, to parse them itself

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        """Return the namespace; for unknown arguments, exit with this command's usage."""
        if self.takes_words:
            return argparse.Namespace(words=list(args[0]), run=self.get_default("run")), []
        found, unknown = super().parse_known_args(*args, **kwargs)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._hint(unknown)}")
        return found, unknown

    def _hint(self, unknown: list[str]) -> str:
        """Return a hint for a device that was named without -d."""
        names = [name for name in unknown if not name.startswith("-")]
        return f" (a device is chosen by -d: -d {names[0]})" if names and self.takes_device else ""


@contextmanager
def _termination() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that children are killed and devices closed."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _flushed() -> Iterator[None]:
    """Flush stdout at the end, so that an error is raised here and not at Python's exit."""
    try:
        yield
    finally:
        try:
            print(end="", flush=True)
        except OSError:
            _give_up(sys.stdout)
            raise


def _give_up(stream: TextIO) -> None:
    """Discard what is left in the buffer, or Python's flush at exit would fail as well."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(TERMINATED)


def _complain(error: Exception, code: int) -> int:
    note(str(error))
    return code


# ---- shared by the commands -----------------------------------------------------------------


def add_command(
    commands: Any,
    name: str,
    what: str,
    run: Callable[[argparse.Namespace], int],
    description: str | None = None,
    json_help: str | None = "print every figure as JSON",
) -> CommandParser:
    """Return the parser of a new command, with --json, and the exit codes in its help.

    Without `json_help` the command adds a --json of its own.
    """
    parser: CommandParser = commands.add_parser(
        name,
        help=what,
        description=description or f"{what[0].upper()}{what[1:]}.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if json_help is not None:
        parser.add_argument("--json", action="store_true", help=json_help)
    parser.set_defaults(run=run)
    return parser


def add_program(parser: CommandParser, command: str) -> None:
    """Add a program and its arguments, which take_program() returns."""
    parser.usage = f"cqnotify {command} [-h] [OPTIONS] [--] PROGRAM [ARGUMENTS]"
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(parser=parser)


def take_program(args: argparse.Namespace) -> list[str]:
    """Return the program and its arguments, without the `--` before them; maybe none."""
    if args.command[:1] == ["--"]:
        del args.command[0]
    return list(args.command)


def add_device(parser: CommandParser, default: str = "the first") -> None:
    """Add the option that selects a device, named as in rdma-core's programs."""
    parser.takes_device = True
    parser.add_argument(
        *("-d", "--device", "--ib-dev"),
        dest="device",
        metavar="D",
        help=f"RDMA device (default: {default})",
    )


def add_port(parser: CommandParser, *gid_flags: str) -> None:
    """Add the options for `port_num` and `gid_index`; the latter has these flags."""
    parser.add_argument(
        *("-i", "--ib-port"),
        dest="port_num",
        metavar="N",
        type=whole(),
        default=1,
        help="port of the device (default: 1)",
    )
    parser.add_argument(
        *gid_flags,
        dest="gid_index",
        metavar="N",
        type=whole(0, 255),
        help="our GID's index (default: the first RoCE v2)",
    )


def device_names(wanted: str | None = None) -> list[str]:
    """Return the names of all devices, or `wanted`; CommandError if there is no such device."""
    names = [device.name for device in list_devices()]
    if not names:
        raise CommandError(why_no_device(), CANNOT_RUN)
    if wanted is None:
        return names
    if wanted not in names:
        raise CommandError(f"there is no device {wanted}; there is {', '.join(names)}", CANNOT_RUN)
    return [wanted]


def check_limit(where: str, option: str, value: int, limit: int) -> None:
    """Raise CommandError if an option's value exceeds a limit of the device or port `where`."""
    if value > limit:
        raise CommandError(f"{option} is {value}: the limit of {where} is {limit}", USAGE)


def check_connects(context: Context, hint: str = "") -> None:
    """Raise CommandError unless the device's QPs can be connected by verbs alone."""
    if why := needs_rdma_cm(context):
        raise CommandError(why + hint, CANNOT_RUN)


def check_port(context: Context, port_num: int) -> PortAttr:
    """Return the attributes of the port of --ib-port; CommandError unless it exists and is up."""
    check_limit(context.name, "--ib-port", port_num, context.query_device().phys_port_cnt)
    port = context.query_port(port_num)
    if port.state != PortState.ACTIVE:
        state = getattr(port.state, "name", port.state)
        raise CommandError(f"{context.name} port {port_num} is {state}, not ACTIVE", CANNOT_RUN)
    return port


@contextmanager
def log_folder(keep: str | None, command: str) -> Iterator[str]:
    """Yield a folder for the logs of a program: `keep`, or one that is removed at the end."""
    if keep is None:
        folder = tempfile.mkdtemp(prefix=f"cqnotify-{command}-")
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    os.makedirs(keep, exist_ok=True)
    if any(name.endswith(".log") for name in os.listdir(keep)):
        raise CommandError(f"--keep {keep}: the folder has logs of another run", USAGE)
    yield keep


def note(text: str) -> None:
    """Print a line for the user on stderr, ignoring errors."""
    if sys.stderr is not None:  # else print() would write to stdout
        try:
            print(f"cqnotify: {text}", file=sys.stderr, flush=True)
        except OSError:
            _give_up(sys.stderr)


def print_json(value: object) -> None:
    """Print a command's figures as JSON on stdout."""
    print(json.dumps(value, indent=2))


def write_json(path: str, value: object) -> None:
    """Write what a command found as JSON to a file."""
    text = json.dumps(value, indent=2) + "\n"
    with open(path, "w") as file:
        file.write(text)  # at once, since a signal may end this process


def whole(low: int = 1, high: int | None = None) -> Callable[[str], int]:
    """Return an argparse type: a whole number within these limits."""
    limits = f"{low} or more" if high is None else f"{low} to {high}"

    def parse(text: str) -> int:
        with suppress(ValueError):
            value = int(text)
            if low <= value and (high is None or value <= high):
                return value
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number, {limits}")

    return parse


def seconds(text: str) -> float:
    """Parse a time, up to the 24 days that poll(2) can wait: an argparse type."""
    with suppress(ValueError):
        value = float(text)
        if 0 < value <= LONGEST:
            return value
    raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds, above 0 to {LONGEST}")
