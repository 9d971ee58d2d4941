# SPDX-License-Identifier: MIT
"""What reference/ needs of Sphinx: types from the stubs, and a check that no call is missing."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from docutils import nodes
from docutils.nodes import Element
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.ext.autodoc.mock import mock

from cqnotify import CQStats

STUBS: Final = Path(__file__).parent.parent / "cqnotify" / "_core.pyi"
PAGES: Final = Path(__file__).parent / "reference"

MADE_BY_OTHERS: Final = (CQStats, enum.Enum)  # nobody calls these

Function = ast.FunctionDef


class Stubs:
    """The C core's signatures and types, which it cannot tell itself."""

    def __init__(self, source: str) -> None:
        tree = ast.parse(source)
        self.signatures: dict[str, tuple[str, str | None]] = {}  # by Class.method, or Class
        self.types: dict[str, str] = {}  # by Class.attribute
        self.aliases: dict[str, str] = {}
        bodies: dict[str, list[ast.stmt]] = {}
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                inherited = [stmt for base in bases for stmt in bodies.get(base, ())]
                bodies[node.name] = [*inherited, *node.body]
                self._read_class(node.name, bodies[node.name])
            elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
                assert node.value is not None
                self.aliases[ast.unparse(node.target)] = self.plain(ast.unparse(node.value))

    def _read_class(self, name: str, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.AnnAssign):
                kind = re.sub(r"^Final\[(.*)\]$", r"\1", ast.unparse(node.annotation))
                self.types[f"{name}.{ast.unparse(node.target)}"] = kind
            if not isinstance(node, Function):
                continue
            decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
            returns = self.plain(ast.unparse(node.returns)) if node.returns else None
            if "property" in decorators:
                self.types[f"{name}.{node.name}"] = str(returns)
            elif node.name == "__new__":
                self.signatures.setdefault(name, (self._arguments(node), None))
            else:  # of several overloads the first, which is by arguments
                key = f"{name}.{node.name}"
                self.signatures.setdefault(key, (self._arguments(node), returns))

    def _arguments(self, node: Function) -> str:
        arguments = node.args
        for kind in (arguments.posonlyargs, arguments.args):
            if kind and kind[0].arg in ("self", "cls"):
                del kind[0]
        return f"({self.plain(ast.unparse(arguments))})"

    def plain(self, text: str) -> str:
        """Without names that are known in the stubs alone."""
        for name, meaning in self.aliases.items():
            text = re.sub(rf"\b{name}\b", meaning, text)
        text = re.sub(r"SGE \| MR \| list\[SGE \| MR\] \| tuple\[SGE \| MR, \.\.\.\]", _SG, text)
        return text


_SG: Final = "SGE | MR | list[SGE | MR]"  # a tuple will do, too


def _key(name: str) -> str:
    """cqnotify.CQ.poll is CQ.poll in the stubs."""
    return re.sub(r"^cqnotify\.(_core\.|hw\.)?", "", name)


def _names() -> Iterator[str]:
    """The public names of the modules that the pages show, and the methods of their classes."""
    pages = "".join(page.read_text() for page in PAGES.glob("*.md"))
    for module in set(re.findall(r"^\.\. (?:py:current|auto)module:: (\S+)", pages, re.M)):
        namespace = importlib.import_module(module)
        for name in namespace.__all__:
            yield f"{module}.{name}"
            cls = getattr(namespace, name)
            for member, value in vars(cls).items() if isinstance(cls, type) else ():
                if inspect.isroutine(value) and not member.startswith("_"):
                    yield f"{module}.{name}.{member}"


def _is_field(obj: Any) -> bool:
    return str(getattr(obj, "__doc__", "")).startswith("Alias for field number")


# Between the names of a field, while Sphinx would take the words before a space for their type.
_SPACE: Final = "\N{BRAILLE PATTERN BLANK}"


def _parameters(lines: list[str]) -> Iterator[str]:
    """Lines such as "name: what it is", as we write them, become Sphinx's fields."""
    for line in lines:
        if names := re.match(r"([a-z]\w*(?:, [a-z]\w*)*): (?=\S)", line):
            yield f":param {names[1].replace(' ', _SPACE)}: {line[names.end() :]}"
        else:
            yield line


def setup(app: Sphinx) -> dict[str, bool]:
    stubs = Stubs(STUBS.read_text())

    def signature(
        app: Sphinx, what: str, name: str, obj: Any, options: Any, args: str, returns: str
    ) -> tuple[str, str | None] | None:
        known = stubs.signatures.get(_key(name))
        if args is None:
            return None
        if known is not None and not hasattr(obj, "__code__"):
            return known
        if what == "class" and issubclass(obj, MADE_BY_OTHERS):
            return "", None
        args = re.sub(r"<(\w+\.\w+): \d+>", r"\1", args)  # defaults that are members of a Flag
        return stubs.plain(args), returns and stubs.plain(returns)

    def docstring(
        app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
    ) -> None:
        lines[:] = _parameters(lines)
        kind = stubs.types.get(_key(name))
        if what in ("attribute", "property") and kind is not None and not hasattr(obj, "fget"):
            lines += ["", f":type: {kind}"]

    def type_beside_name(app: Sphinx, domain: str, objtype: str, content: Element) -> None:
        """Of attributes, as it stands beside those of methods."""
        for fields in list(content.findall(nodes.field_list)):
            if fields[0][0].astext() == "type":
                signature = content.parent[0]
                signature += addnodes.desc_annotation("", ": " + fields[0][1].astext())
                content.remove(fields)

    def spaces(app: Sphinx, doctree: Element) -> None:
        for text in list(doctree.findall(nodes.Text)):
            if _SPACE in text:
                text.parent.replace(text, nodes.Text(text.replace(_SPACE, " ")))

    def skip(app: Sphinx, what: str, name: str, obj: Any, skipped: bool, options: Any) -> Any:
        if isinstance(obj, enum.Enum):
            return False  # even without a docstring
        return True if _is_field(obj) else None  # they are in the signature

    def check(app: Sphinx, env: Any) -> None:
        with mock(app.config.autodoc_mock_imports):
            missing = set(_names()) - set(env.get_domain("py").objects)
        if missing:
            raise ExtensionError(f"the reference lacks {', '.join(sorted(missing))}")

    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-process-docstring", docstring)
    app.connect("object-description-transform", type_beside_name)
    app.connect("doctree-read", spaces)
    app.connect("autodoc-skip-member", skip)
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True}
