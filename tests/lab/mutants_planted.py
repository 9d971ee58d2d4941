# SPDX-License-Identifier: MIT
"""The mutants of the C core: where one can be planted, and sources that hold many at once.

A mutant is a change inside one function. The sources that are compiled have a copy of the function
for each, behind the function itself, and the function calls the copy while that mutant is chosen
(mutants_runtime.h). A mark where the change is records which tests reach it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tree_sitter_c
from tree_sitter import Language, Node, Parser

PARSER = Parser(Language(tree_sitter_c.language()))

# What is no C for a parser that expands no macros: spaces take its place.
MACROS = re.compile(rb"\b(?:CQN_RARE|PyObject_HEAD|Py_(?:BEGIN|END)_ALLOW_THREADS)\b")

# What shows or checks something, and does nothing: no change is made in it.
SHOWS = re.compile(
    r"assert|CQN_(?:STEP|TRACE|TRACE_N|PLACE|CHECK_ENGINE)|cqn_observe|Py_(?:VISIT|UNUSED)"
)
# To drop a release is a leak, which only `./lab test --refleak` finds; what starts or ends a
# section of the lock does nothing with a GIL.
RELEASES = re.compile(r"Py_(?:X?DECREF|CLEAR)|PyMem_Free|cqn_(?:end|leave)_\w*section")

COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
OPERATORS = {
    **COMPARISONS,
    **{"&&": "||", "||": "&&", "+": "-", "-": "+", "*": "+", "%": "*", "&": "|", "|": "&"},
    **{"<<": ">>", ">>": "<<", "+=": "-=", "-=": "+=", "|=": "&=", "&=": "|="},
    **{"++": "--", "--": "++"},
}
CONSTANTS = {"true": "false", "false": "true"}


class TableError(Exception):
    """A table of mutants cannot be read, or an entry of it does not apply any more."""


@dataclass(frozen=True)
class Change:
    start: int
    end: int
    text: bytes


@dataclass(frozen=True)
class Mutant:
    file: str
    function: str
    line: int
    changes: tuple[Change, ...]
    diff: tuple[str, ...]  # without the indentation
    name: str = ""  # of a known one
    tests: str = ""  # how the names of those for its rule begin

    @property
    def key(self) -> tuple[str, str, tuple[str, ...]]:
        return self.file, self.function, self.diff

    def __str__(self) -> str:
        head = f"{self.file}:{self.line}: {self.function}()"
        title = f"{head}  [{self.name}]" if self.name else head
        return "\n".join([title, *(f"    {line}" for line in self.diff)])


# ---- a source ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Function:
    name: str
    definition: Node
    declarator: Node  # of the name and the parameters
    body: Node


def text(node: Node | None) -> str:
    assert node is not None
    assert node.text is not None
    return str(node.text, "utf-8")


def inner(node: Node | None, *types: str) -> Node | None:
    """The first node of these types down the declarators."""
    while node is not None and node.type not in types:
        node = node.child_by_field_name("declarator")
    return node


class Source:
    def __init__(self, root: Path, file: str) -> None:
        self.file = file
        self.data = (root / file).read_bytes()
        blanked = MACROS.sub(lambda found: b" " * len(found[0]), self.data)
        self.tree = PARSER.parse(blanked)
        self.functions = list(self.find_functions(self.tree.root_node))

    def find_functions(self, node: Node) -> Iterator[Function]:
        if is_of_other_builds(node):
            return
        if node.type == "function_definition" and not node.has_error:
            declarator = inner(node, "function_declarator")
            name = inner(declarator, "identifier")
            body = node.child_by_field_name("body")
            if declarator is not None and name is not None and body is not None:
                yield Function(text(name), node, declarator, body)
        else:
            for child in node.children:
                yield from self.find_functions(child)

    def mutant(self, changes: Iterable[Change], name: str = "", tests: str = "") -> Mutant:
        ordered = tuple(sorted(changes, key=lambda change: change.start))
        for function in self.functions:
            body = function.body
            if body.start_byte < ordered[0].start and ordered[-1].end < body.end_byte:
                line = self.data.count(b"\n", 0, ordered[0].start) + 1
                diff = tuple(self.diff(ordered))
                return Mutant(self.file, function.name, line, ordered, diff, name, tests)
        raise TableError(f"{name}: the change is not inside one function of {self.file}")

    def diff(self, changes: tuple[Change, ...]) -> Iterator[str]:
        for change in changes:
            begin = self.data.rfind(b"\n", 0, change.start) + 1
            end = self.data.find(b"\n", change.end - 1)
            old = self.data[begin:end].decode().split("\n")
            changed = self.data[begin : change.start] + change.text + self.data[change.end : end]
            new = changed.decode().removesuffix("\n").split("\n")
            while old and new and old[0] == new[0]:
                old, new = old[1:], new[1:]
            while old and new and old[-1] == new[-1]:
                old, new = old[:-1], new[:-1]
            yield from (f"- {line.strip()}" for line in old)
            yield from (f"+ {line.strip()}" for line in new)


def is_of_other_builds(node: Node) -> bool:
    """Code for a Python without a GIL, or for one of several processors."""
    if not node.type.startswith("preproc_if"):
        return False
    return re.match(r".*(Py_GIL_DISABLED|defined\(__)", text(node)) is not None


# ---- generated mutants ------------------------------------------------------------------------


def mutants_of(source: Source) -> list[Mutant]:
    found = [
        source.mutant([change])
        for function in source.functions
        for change in changes_in(function.body)
    ]
    return list({mutant.changes: mutant for mutant in found}.values())


def changes_in(node: Node) -> Iterator[Change]:
    if is_of_other_builds(node) or shows(node):
        return
    yield from changes_of(node)
    for child in node.children:
        yield from changes_in(child)


def shows(node: Node) -> bool:
    if node.type == "if_statement":
        return text(node.child_by_field_name("condition")).startswith("(cqn_observe")
    called = node.child_by_field_name("function") if node.type == "call_expression" else None
    return called is not None and SHOWS.fullmatch(text(called)) is not None


def changes_of(node: Node) -> Iterator[Change]:
    kind = node.type
    operator = node.child_by_field_name("operator")
    if operator is not None and operator.type in OPERATORS and kind != "pointer_expression":
        yield of(operator, OPERATORS[operator.type])
    elif kind == "unary_expression" and text(operator) == "!":
        yield of(node, text(node.child_by_field_name("argument")))
    if kind in ("if_statement", "conditional_expression", "while_statement", "for_statement"):
        yield from changes_of_condition(node)
    if kind == "expression_statement" and is_dropped(node.children[0]):
        yield of(node, ";")
    if kind in ("break_statement", "continue_statement"):
        yield of(node, ";")
    if kind == "return_statement":
        yield from changes_of_return(node)


def of(node: Node, replacement: str) -> Change:
    return Change(node.start_byte, node.end_byte, replacement.encode())


def changes_of_condition(node: Node) -> Iterator[Change]:
    condition = node.child_by_field_name("condition")
    if condition is None:
        return
    if condition.type == "parenthesized_expression":
        condition = condition.named_children[-1]
    is_loop = node.type in ("while_statement", "for_statement")
    constants = ("false",) if is_loop else ("true", "false")  # an endless loop shows nothing
    yield of(condition, f"!({text(condition)})")
    yield from (of(condition, constant) for constant in constants)


def is_dropped(node: Node) -> bool:
    if node.type == "call_expression":
        called = text(node.child_by_field_name("function"))
        return not SHOWS.fullmatch(called) and not RELEASES.fullmatch(called)
    return node.type in ("assignment_expression", "update_expression")


def changes_of_return(node: Node) -> Iterator[Change]:
    value = text(node.named_children[0]) if node.named_children else ""
    if value in CONSTANTS:
        yield of(node, f"return {CONSTANTS[value]};")
    if has_code_behind(node):
        yield of(node, ";")


def has_code_behind(node: Node) -> bool:
    """Whether a function goes on where this statement is dropped."""
    while node.parent is not None and node.type != "function_definition":
        behind = node.next_named_sibling
        if node.type != "else_clause" and behind is not None and behind.type.endswith("_statement"):
            return True
        node = node.parent
    return False


# ---- tables -----------------------------------------------------------------------------------


def blocks(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The paragraphs of a table, with the number of their first line, without comments."""
    block: list[str] = []
    for number, line in enumerate([*path.read_text().splitlines(), ""], 1):
        if line.strip() and not line.startswith("#"):
            block.append(line)
        elif block and not line.strip():
            yield number - len(block), block
            block = []


def known(root: Path, path: Path) -> list[Mutant]:
    """Those of a table; TableError names one that does not apply."""
    found = []
    for number, block in blocks(path):
        title, _, rule = block[0].partition(": ")
        file, _, tests = block[1].partition(" ") if len(block) > 2 else ("", "", "")
        exist = (root / file).is_file() and (root / tests.partition("::")[0]).exists()
        if not (rule and file and exist):
            raise TableError(f"{path.name}:{number}: a mutant is NAME: RULE, FILE and hunks")
        source = read(root, file)
        changes = [located(source, hunk, title) for hunk in hunks(block[2:])]
        found.append(source.mutant(changes, title, tests))
    return found


def hunks(lines: list[str]) -> Iterator[list[str]]:
    hunk: list[str] = []
    for line in [*lines, "@@"]:
        if line.startswith("@@"):
            yield hunk
            hunk = []
        else:
            hunk.append(line)


def located(source: Source, hunk: list[str], name: str) -> Change:
    """The change of a hunk: its lines begin with a space, "-" or "+", as those of a diff."""
    if any(line[0] not in " -+" for line in hunk):
        raise TableError(f"{name}: each line of a hunk begins with a space, - or +")
    old = b"".join(line[1:].encode() + b"\n" for line in hunk if line[0] in " -")
    new = b"".join(line[1:].encode() + b"\n" for line in hunk if line[0] in " +")
    times = ("\n" + source.data.decode()).count("\n" + old.decode())
    if times != 1:
        raise TableError(
            f"the mutant '{name}' does not apply: {source.file} has its lines {times} times"
        )
    start = (b"\n" + source.data).index(b"\n" + old)
    return Change(start, start + len(old), new)


def explained(path: Path) -> dict[tuple[str, str, tuple[str, ...]], str]:
    """Why mutants survive, by what they change: a changed line loses its explanation."""
    found = {}
    for number, block in blocks(path):
        heading = re.fullmatch(r"(\S+): (\w+)\(\)", block[0])
        if heading is None or not block[-1].startswith("= "):
            raise TableError(f"{path.name}:{number}: an entry is FILE: FUNCTION(), diff, = WHY")
        found[heading[1], heading[2], tuple(block[1:-1])] = block[-1][2:]
    return found


# ---- choosing ---------------------------------------------------------------------------------


@cache
def read(root: Path, file: str) -> Source:
    return Source(root, file)


def chosen(
    root: Path, files: list[str], count: int, seed: int, refused: frozenset[object]
) -> list[Mutant]:
    """Generated ones, by a seed: each file has its share of `count`, by what can be changed in
    it. Those that were refused, because they are no C, do not count."""
    shuffled: dict[str, list[Mutant]] = {}
    for file in files:
        found = mutants_of(read(root, file))
        random.Random(f"{seed} {file}").shuffle(found)
        if found:
            shuffled[file] = [m for m in found if (file, m.changes) not in refused]
    total = sum(map(len, shuffled.values()))
    # The next one is of the file that is farthest behind its share.
    taken = dict.fromkeys(shuffled, 0)
    for _ in range(min(count, total)):
        behind = min(
            (file for file in taken if taken[file] < len(shuffled[file])),
            key=lambda file: ((taken[file] + 0.5) / len(shuffled[file]), file),
        )
        taken[behind] += 1
    return [mutant for file in shuffled for mutant in shuffled[file][: taken[file]]]


# ---- sources with all of them -----------------------------------------------------------------


def planted(source: Source, mutants: dict[int, Mutant]) -> tuple[bytes, list[int]]:
    """The source with these mutants, and for each of its lines the number of the mutant whose copy
    it belongs to, or 0."""
    insertions: list[tuple[int, int, bytes]] = []  # where, order, what
    copies: dict[int, dict[int, bytes]] = {}  # by the end of a function, by number
    for number, mutant in mutants.items():
        function = next(
            f
            for f in source.functions
            if f.body.start_byte < mutant.changes[0].start < f.body.end_byte
        )
        definition = function.definition
        signature = source.data[definition.start_byte : function.body.start_byte]
        offset = name_at(function) - definition.start_byte
        own = f"{function.name}_mutant_{number}".encode()
        signature = signature[:offset] + own + signature[offset + len(function.name) :]
        if not signature.startswith(b"static"):
            signature = b"static " + signature
        body = changed(source.data, mutant, function.body)
        copies.setdefault(definition.end_byte, {})[number] = signature + body
        insertions += [
            (definition.start_byte, 0, signature.strip() + b";\n"),
            (function.body.start_byte + 1, 1, call(function, own.decode(), number)),
            *marks(function, mutant, number),
        ]
    return assembled(source.data, insertions, copies)


def name_at(function: Function) -> int:
    name = inner(function.declarator, "identifier")
    assert name is not None
    return int(name.start_byte)


def changed(data: bytes, mutant: Mutant, body: Node) -> bytes:
    pieces, at = [], body.start_byte
    for change in mutant.changes:
        pieces += [data[at : change.start], change.text]
        at = change.end
    return b"".join([*pieces, data[at : body.end_byte]])


def call(function: Function, name: str, number: int) -> bytes:
    arguments = ", ".join(parameters(function))
    head = source_of_type(function)
    if head == "void":
        return f" if (cqn_is_mutant({number})) {{ {name}({arguments}); return; }}".encode()
    return f" if (cqn_is_mutant({number})) {{ return {name}({arguments}); }}".encode()


def source_of_type(function: Function) -> str:
    """ "void" only for a function that returns nothing."""
    declarator = function.definition.child_by_field_name("declarator")
    is_pointer = declarator is not None and declarator.type == "pointer_declarator"
    return "" if is_pointer else text(function.definition.child_by_field_name("type"))


def parameters(function: Function) -> Iterator[str]:
    listed = function.declarator.child_by_field_name("parameters")
    assert listed is not None
    for parameter in listed.named_children:
        if parameter.type != "parameter_declaration" or text(parameter) == "void":
            continue
        unused = re.search(r"Py_UNUSED\((\w+)\)", text(parameter))
        name = inner(parameter, "identifier")
        assert unused or name, text(parameter)
        yield f"_unused_{unused[1]}" if unused else text(name)


def marks(function: Function, mutant: Mutant, number: int) -> Iterator[tuple[int, int, bytes]]:
    for change in mutant.changes:
        node = function.body.descendant_for_byte_range(change.start, change.end)
        where, mark = place_of_mark(node, change, number)
        yield where, 2, mark


def place_of_mark(node: Node | None, change: Change, number: int) -> tuple[int, bytes]:
    """In front of the statement that is changed, or at the start of a condition."""
    while node is not None and node.parent is not None:
        parent = node.parent
        if node.type == "parenthesized_expression" and parent.type in (
            "if_statement",
            "while_statement",
            "switch_statement",
        ):
            return node.start_byte + 1, f"cqn_reach({number}), ".encode()
        if parent.type in ("compound_statement", "case_statement") and is_statement(node):
            return node.start_byte, f"cqn_reach({number}); ".encode()
        if node.type == "compound_statement":  # a hunk of several statements
            first = next(child for child in node.named_children if child.end_byte > change.start)
            return first.start_byte, f"cqn_reach({number}); ".encode()
        node = parent
    raise AssertionError("a change outside of all statements")


def is_statement(node: Node) -> bool:
    kind: str = node.type
    return kind == "declaration" or kind.endswith("_statement")


def assembled(
    data: bytes, insertions: list[tuple[int, int, bytes]], copies: dict[int, dict[int, bytes]]
) -> tuple[bytes, list[int]]:
    pieces: list[bytes] = []
    owners: list[int] = []

    def add(piece: bytes, owner: int) -> None:
        pieces.append(piece)
        owners.extend([owner] * piece.count(b"\n"))

    at = 0
    add(b'#include "mutants_runtime.h"\n', 0)
    everything = [*insertions, *((end, 3, b"") for end in copies)]
    for where, order, piece in sorted(everything, key=lambda item: item[:2]):
        add(data[at:where], 0)
        add(piece, 0)
        at = where
        if order == 3:
            for number, body in copies[where].items():
                add(b"\n", 0)
                add(body + b"\n", number)
    add(data[at:] + b"\n", 0)
    return b"".join(pieces), owners
