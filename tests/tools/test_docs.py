# SPDX-License-Identifier: MIT
"""What the README and docs/ show is true: programs run, commands exist, links lead somewhere."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from doc_support import DOCS, PAGES, ROOT, Block, Page, Program, matches, read
from support import DEADLINE, is_rxe, on_iwarp, python

from benchmarks import __main__ as bench
from cqnotify import Context
from cqnotify.cli import COMMANDS, _parser
from cqnotify.lab import cli

# Programs that are compared, those that command hosts from outside, and those that need PyTorch
# or Ray.
BY_THEMSELVES = {
    "migrating.md": "test_migrating_doc.py",
    "hosts.md": "test_hosts.py",
    "ray.md": "test_ray_programs.py",
    "torch.md": "test_torch_page.py",
}
pages: list[Page] = [read(name) for name in PAGES]
LANGUAGES = {"python", "c", "sh", "console", "text", "yaml", "ini", "", "{eval-rst}"}
PYTEST = " -q -x -k -m "  # what its own help, which takes long, has for us

NAMES = {path: name for name, path in PAGES.items()}

each_page = pytest.mark.parametrize("page", pages, ids=lambda page: page.name)


def is_suite(program: Program) -> bool:
    """Whether it is for pytest."""
    return any(re.search(r"^(async )?def test_", block.text, re.M) for block in program.blocks)


all_programs = [
    program for page in pages if page.name not in BY_THEMSELVES for program in page.programs
]
programs = [program for program in all_programs if not is_suite(program)]
suites = [program for program in all_programs if is_suite(program)]


def name_of(program: Program) -> str:
    return f"{program.page}:{program.line}"


# ---- links ----------------------------------------------------------------------------------


@each_page
def test_every_link_leads_somewhere(page: Page) -> None:
    for link in page.links:
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (PAGES[page.name].parent / path).resolve() if path else PAGES[page.name]
        assert target.exists(), link
        if anchor:
            assert anchor in read(NAMES[target]).anchors, link


def test_the_index_and_the_readme_name_all_that_there_is() -> None:
    shown = {path.name for path in DOCS.glob("*.md")} - {"index.md"}
    assert shown - set(read("index.md").links) == set()
    assert {f"docs/{name}" for name in shown} - set(read("README.md").links) == set()
    modules = {name for name in PAGES if name.startswith("reference/")}
    assert modules - set(read("reference.md").links) == set()
    text = PAGES["README.md"].read_text()
    assert [name for name in COMMANDS if f"\ncqnotify {name} " not in text] == []


@each_page
def test_every_picture_is_shown_and_every_block_has_a_known_language(page: Page) -> None:
    assert {block.language for block in page.blocks} <= LANGUAGES
    linked = {link for each in pages for link in each.links}
    assert {path.name for path in DOCS.glob("*.svg")} <= linked


# ---- python ---------------------------------------------------------------------------------


# What distributed says, over any protocol, of a worker that closes while it sends a heartbeat.
LAST_HEARTBEAT = re.compile(
    r".*Failed to communicate with scheduler during heartbeat\.\n"
    r"(?:(?!\d{4}-\d\d-\d\d ).*\n)*?"  # its traceback, and nothing else that is logged
    r".*CommClosedError: ConnectionPool closing\.\n"
)


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return python("-W", "error", *words, cwd=folder)


# Of programs that rely on what a send tells of its arrival, or on what RoCE deviates in.
NOT_ON_IWARP = {
    "it has arrived when this returns": "a send completes before it has arrived",
    "conformance.Outcome.NO_RECEIVE": "other rows deviate",
    "retry_cnt=1, rnr_retry=0": "a QP is connected once, and a send completes before it arrives",
    "exchange_as_server(listener, qp.address()": "its QPs are connected by rdma_cm alone",
    "cm.join_multicast(": "it has no datagrams",
}


@pytest.mark.usefixtures("ctx")
@pytest.mark.parametrize("program", programs, ids=name_of)
def test_a_program_runs_and_prints_what_stands_below_it(program: Program, tmp_path: Path) -> None:
    for words, why in NOT_ON_IWARP.items():
        if on_iwarp() and words in program.source:
            pytest.skip(f"iWARP: {why}")
    path = tmp_path / f"page_{Path(program.page).stem}.py"  # which hides no package
    path.write_text(program.source)
    done = run(tmp_path, path.name)
    assert (done.returncode, LAST_HEARTBEAT.sub("", done.stderr)) == (0, ""), done.stderr
    assert matches(done.stdout, program.output), f"{done.stdout}\nis not\n{program.output}"


@pytest.mark.usefixtures("ctx")
@pytest.mark.parametrize("suite", suites, ids=name_of)
def test_the_tests_that_are_shown_pass(suite: Program, tmp_path: Path) -> None:
    path = tmp_path / "test_shown.py"
    path.write_text(suite.source)
    options = ["-q", "-p", "no:cacheprovider", "--rdma-required"]
    options += ["--rdma-check"] * ("rdma_chaos" in suite.source)
    done = run(tmp_path, "-m", "pytest", *options, path.name)
    assert done.returncode == 0, done.stdout
    (passed,) = re.findall(r"^(\d+) passed in", done.stdout, re.M)
    assert int(passed) >= len(re.findall("def test_", suite.source))


# ---- commands -------------------------------------------------------------------------------


def accepts(text: str, words: list[str]) -> bool:
    """Whether a help names all options among the words."""
    options = [word.partition("=")[0] for word in words if re.match("--?[a-z]", word)]
    return all(re.search(rf"(^|[\s,|\[]){re.escape(o)}\b", text) for o in options)


def exits_well(parse: Callable[[], object]) -> bool:
    """Whether a parser takes them; one of --help ends with 0."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            parse()
        except SystemExit as e:
            return e.code == 0
    return True


@functools.cache
def helped(*command: str) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=2 * DEADLINE, cwd=ROOT
    ).stdout


def check_lab(words: list[str]) -> bool:
    usage = helped("./lab", "--help")
    if words == ["--help"]:
        return True
    commands = re.findall(r"^  \./lab (\w+)", usage, re.M)
    at = next(i for i, word in enumerate(words) if word in commands)
    before, command, rest = words[:at], words[at], words[at + 1 :]
    if not accepts(usage, before):
        return False
    if command == "run":
        split = rest.index("--") + 1 if "--" in rest else 0
        return accepts(usage, rest[:split]) and check_command(rest[split:])
    if command == "hosts":
        at = rest.index("--")
        commands = " ".join(rest[at + 1 :]).split(" --- ")
        return accepts(usage, rest[1:at]) and all(check_command(c.split()) for c in commands)
    if command == "bench":
        return exits_well(lambda: bench.parse([*rest, "--"]))
    if command in ("test", "selftest"):
        paths = [word.partition("::")[0] for word in rest if word.startswith("tests/")]
        return accepts(usage + PYTEST, rest) and all((ROOT / path).exists() for path in paths)
    return accepts(usage, rest) and all(word in usage for word in rest)


def check_python(words: list[str]) -> bool:
    if words[0] == "-m":
        return words[1:2] == ["pytest"] or (words[1] == "cqnotify" and check_cqnotify(words[2:]))
    if words[0].startswith(("examples/", "tests/")):
        return accepts(helped(sys.executable, words[0], "--help"), words[1:])
    if words[0] == "-c":
        return bool(compile(words[1], words[0], "exec"))
    return words[0].endswith(".py") and "/" not in words[0]  # the reader's own


def check_cqnotify(words: list[str]) -> bool:
    if words[0] != "lab":
        return exits_well(lambda: _parser().parse_args(words))
    own, action, rest = cli.split(words[1:])
    cli.parser().parse_args(own)
    return action != "run" or check_command(rest)


def check_pip(words: list[str]) -> bool:
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.M)
    what = r"(?:\.|cqnotify|dist/cqnotify-.*\.whl)(?:\[(\w+)\])?"
    extra = re.fullmatch(what, words[-1])
    known = words[0] in ("install", "wheel") and extra is not None
    return known and extra[1] in (None, *extras)


def check_uv(words: list[str]) -> bool:
    if words[0] in ("pip", "tool"):
        return words[1] == "install" and check_pip(words[1:])
    return words == ["venv"]


def check_apt(words: list[str]) -> bool:
    files = ["lab", "setup.py", "cqnotify/lab/prerequisites.py"]
    known = "".join((ROOT / name).read_text() for name in files)
    if words == ["update"]:
        return True
    return words[0] == "install" and all(f"{package}" in known for package in words[1:])


CHECKS: dict[str, Callable[[list[str]], bool]] = {
    "./lab": check_lab,
    "cqnotify": check_cqnotify,
    "python": check_python,
    "pip": check_pip,
    "pipx": check_pip,
    "uv": check_uv,
    "apt-get": check_apt,
    "python3": lambda words: words[:2] == ["-m", "venv"],
    ".": lambda words: words[0].endswith("/bin/activate"),  # of the shell, as the next
    "ulimit": lambda words: words == ["-l"],
    "sudo": lambda words: check_command(words),
    "cargo": lambda words: words[0] == "test",  # these two are not where this runs
    "ctest": lambda words: words[0] == "--test-dir",
    "cmake": lambda words: words[0] in ("-B", "--build"),
}


def check_command(words: list[str]) -> bool:
    if words[0] in CHECKS:
        return CHECKS[words[0]](words[1:])
    return shutil.which(words[0]) is not None


def commands_of(blocks: list[Block]) -> list[list[str]]:
    lines = [line for block in blocks for line in block.text.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@each_page
def test_every_command_exists_and_takes_its_options(page: Page) -> None:
    for words in commands_of([block for block in page.blocks if block.language == "sh"]):
        assert check_command(words), words
    for block in page.blocks:
        if block.language == "yaml":
            steps = re.findall(r"^ *- run: (.+)$", block.text, re.M)
            assert steps
            for step in steps:
                assert check_command(shlex.split(step)), step


transcripts = [(page.name, block) for page in pages for block in page.blocks]
transcripts = [(name, block) for name, block in transcripts if block.language == "console"]


@pytest.mark.parametrize(("name", "block"), transcripts, ids=lambda x: x if x in PAGES else None)
def test_a_command_prints_what_stands_below_it(
    ctx: Context, name: str, block: Block, tmp_path: Path
) -> None:
    if os.environ.get("CQNOTIFY_LAB") != "vm" or not is_rxe(ctx):
        pytest.skip("it shows the microVM's devices, which are Soft-RoCE")
    for shown in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        line, _, output = shown.partition("\n")
        words = shlex.split(line.removeprefix("./lab run -- "))  # we are there already
        assert words[0] == "cqnotify"
        done = run(tmp_path, "-m", *words)
        assert (done.returncode, done.stderr) == (0, "")
        assert matches(done.stdout, output), done.stdout


# ---- messages -------------------------------------------------------------------------------


def test_the_page_on_installing_quotes_messages_that_there_are() -> None:
    files = ["setup.py", "cqnotify/_no_core.py", "csrc/base/library.c", "csrc/cm/library.c"]
    sources = "".join((ROOT / name).read_text() for name in [*files, "csrc/verbs/device.c"])
    quoted = [row[0] for row in rows_of("install.md", "What can go wrong")]
    assert len(quoted) > 5
    for cell in quoted:
        assert cell.split("`")[1] in sources, cell


# ---- figures --------------------------------------------------------------------------------


def table_of(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line[1:].rstrip("|").split("|")] for line in lines]


def measured(bench: str) -> dict[tuple[str, str], list[str]]:
    """The cells of a table of docs/performance-tables.md, the device's, by case and subject."""
    text = (DOCS / "performance-tables.md").read_text()
    table = text.partition(f"<!-- bench {bench} -->")[2].partition("<!-- end -->")[0]
    return {(case, subject): cells for case, subject, *cells in table_of(table)}


LIBRARIES = ("pyverbs", "ibverbs", "cqnotify")


def figure(bench: str, case: str, subject: str, column: int) -> str:
    """Of a subject that has no row there is none."""
    cells = measured(bench).get((case, subject))
    return "" if cells is None else cells[column]


def cpu(case: str, subject: str) -> str:
    cost, busy = (
        figure("receiver", *key, 0).replace(",", "")
        for key in [(case, subject), ("busy", "cqnotify")]
    )
    return f"{100 * float(cost) / float(busy):.2g} %" if cost else ""


def cpus(case: str) -> list[str]:
    return [cpu(case, subject) for subject in ("C", *LIBRARIES)]


def over_c(bench: str, case: str, *subjects: str) -> list[str]:
    """What it costs if C is 1."""
    return ["1", *(figure(bench, case, subject, 1) for subject in subjects or LIBRARIES)]


def computing() -> list[str]:
    shares = (figure("computing", "1 per ms", subject, 0) for subject in LIBRARIES)
    return ["", *(f"{share} %" if share else "" for share in shares)]


def getting(case: str) -> list[str]:
    """In asyncio, and in a thread, if C is 1."""
    return [
        "1",
        "",
        "",
        "; ".join(measured("gets")[case, f"cqnotify{way}"][1] for way in ("", " blocking")),
    ]


def importing(*subjects: str) -> list[str]:
    """In millions of instructions."""
    cells = measured("imports")
    costs = [float(cells["import", subject][0].replace(",", "")) for subject in subjects]
    return ["", *(f"{cost / 1e6:.0f}" for cost in costs)]


def rows_of(page: str, heading: str) -> list[list[str]]:
    text = PAGES[page].read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return table_of(text)[1:]


def test_what_waiting_costs_is_what_was_measured() -> None:
    subjects = [("any", "cqnotify"), ("1 in 16", "cqnotify"), ("any", "cqnotify asyncio")]
    subjects += [("1 in 16", "cqnotify asyncio"), ("spin 50 us", "cqnotify asyncio")]
    shown = [row[1] for row in rows_of("waiting.md", "Which one")]
    assert shown == ["100 %", *(cpu(*subject) for subject in subjects)]


def test_the_figures_beside_the_alternatives_are_what_was_measured() -> None:
    wanted = [
        cpus("any"),
        cpus("1 in 16"),
        ["", *(cpu("any", f"{library} asyncio") for library in LIBRARIES)],
        over_c("round_trip", "64 B"),
        over_c("drain", "256/64"),
        computing(),
        importing(*LIBRARIES),
    ]
    rows = rows_of("README.md", "Compared with the alternatives")
    assert [row[1:] for row in rows[: len(wanted)]] == wanted


def test_the_summary_of_performance_is_what_was_measured() -> None:
    trip, drain = measured("round_trip"), measured("drain")
    loops = ("asyncio", "new_event_loop", "uvloop")
    ids, into = (drain["256/64", f"cqnotify {way}"][1] for way in ("poll_ids", "poll_into"))
    wanted = [
        over_c("round_trip", "64 B"),
        [
            "",
            *(
                figure("round_trip", "64 B", f"{name} asyncio", 1)
                for name in ("pyverbs", "ibverbs")
            ),
            "; ".join(trip["64 B", f"cqnotify {loop}"][1] for loop in loops),
        ],
        over_c("cycle", "cycle"),
        cpus("any"),
        over_c("drain", "256/64"),
        over_c("drain", "256/64", *(f"{library}, unread" for library in LIBRARIES)),
        ["", figure("drain", "256/64", "pyverbs CQEX", 1), "", f"{ids}; {into}"],
        over_c("post", "post_send"),
        over_c("completion", "8 B", "pyverbs", "ibverbs", "cqnotify write"),
        computing(),
        getting("4 KiB"),
        getting("16 MiB"),
        importing(*LIBRARIES),
    ]
    assert [row[1:] for row in rows_of("performance.md", "In short")] == wanted
