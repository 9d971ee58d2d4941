# SPDX-License-Identifier: MIT
"""The README and the pages of docs/, as far as tests read them: their blocks, links and programs.

    python tests/doc_support.py FOLDER

writes the programs there, for type checkers, and the workflows, for a validator: see lint() of the
lab.

The python blocks below one heading are one program. `<!-- goes on -->` below a heading makes them
the end of the program before. A block within an HTML comment is run, and not shown. What a program
prints stands in the text blocks between its own, and nothing else is printed; `...` there stands
for anything: a line of it for any lines, within a line for any part of it.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(DOCS)): path for path in sorted(DOCS.rglob("*.md"))}
PAGES = {"README.md": ROOT / "README.md", **PAGES}
GOES_ON = "<!-- goes on -->"

_FENCE = re.compile(r"^(`{3,})(.*)$")
_HEADING = re.compile(r"^(#{1,6}) (.+)$")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    language: str
    line: int  # of the first line of its text, from 1
    text: str


@dataclass
class Section:
    """What stands between one heading and the next."""

    heading: str
    line: int
    blocks: list[Block] = field(default_factory=list)
    goes_on: bool = False

    def of(self, language: str) -> list[Block]:
        return [block for block in self.blocks if block.language == language]


@dataclass
class Program:
    page: str
    line: int
    blocks: list[Block]
    printed: list[Block]

    @property
    def source(self) -> str:
        """Its lines have the numbers that they have on the page."""
        lines: list[str] = []
        for block in self.blocks:
            lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
        return "\n".join(lines) + "\n"

    @property
    def output(self) -> str:
        return "".join(block.text for block in self.printed)


@dataclass
class Page:
    name: str
    sections: list[Section]
    links: list[str]

    @property
    def blocks(self) -> list[Block]:
        return [block for section in self.sections for block in section.blocks]

    @property
    def anchors(self) -> set[str]:
        return {_anchor(section.heading) for section in self.sections}

    @property
    def programs(self) -> list[Program]:
        programs: list[Program] = []
        for section in self.sections:
            if not (blocks := section.of("python")):
                assert not section.goes_on, f"{self.name}:{section.line}: with what?"
                continue
            if not section.goes_on:
                programs.append(Program(self.name, blocks[0].line, [], []))
            programs[-1].blocks += blocks
            programs[-1].printed += section.of("text")
        return programs


def read(name: str) -> Page:
    page = Page(name, [], [])
    prose = ""
    lines = iter(enumerate(PAGES[name].read_text().splitlines(), 1))
    for number, line in lines:
        if heading := _HEADING.match(line):
            page.sections.append(Section(heading[2], number))
        elif fence := _FENCE.match(line):
            text = ""
            for _, inside in lines:
                if inside == fence[1]:
                    break
                text += inside + "\n"
            page.sections[-1].blocks.append(Block(fence[2].strip(), number + 1, text))
        else:
            prose += line + "\n"
            if line.strip() == GOES_ON:
                page.sections[-1].goes_on = True
    page.links += _LINK.findall(prose)
    return page


def _anchor(heading: str) -> str:
    """As the hosts of repositories and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def matches(printed: str, shown: str) -> bool:
    """Whether a program printed what a page shows."""
    pattern = ""
    for line in shown.splitlines(keepends=True):
        anything = line.strip() == "..."
        pattern += r"(.*\n)*?" if anything else re.escape(line).replace(r"\.\.\.", ".*")
    return re.fullmatch(pattern, printed) is not None


# ---- for type checkers ----------------------------------------------------------------------


def with_cqnotify(page: Page) -> list[list[Block]]:
    """Of a page that shows each task with several libraries, ours last: our programs, each with
    the set-up."""
    ours = [blocks[-1] for section in page.sections if (blocks := section.of("python"))]
    return [[ours[0], task] for task in ours[1:]]


def write_programs(folder: Path) -> None:
    """Each in a file that is named after its page and line, and has the page's line numbers."""
    folder.mkdir(parents=True)
    for name in PAGES:
        page = read(name)
        stem = name.removesuffix(".md").replace("/", "_")
        # torch and Ray are not there.
        programs = [] if name in ("ray.md", "torch.md") else page.programs
        if name == "migrating.md":
            ours = with_cqnotify(page)
            programs = [Program(name, task.line, [setup, task], []) for setup, task in ours]
        for program in programs:
            path = folder / f"{stem}_{program.line}.py"
            path.write_text(program.source)
        for block in page.blocks:
            if block.language == "yaml":
                (folder / f"{stem}_{block.line}.yml").write_text(block.text)


if __name__ == "__main__":
    write_programs(Path(sys.argv[1]))
