# SPDX-License-Identifier: MIT
"""Names that are imported when they are first asked for (PEP 562).

The descriptions of devices and addresses take longer to import than all else of the package,
because of the standard library's modules that they need, and many programs need them late or never.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_names(
    namespace: "dict[str, Any]", files: "Mapping[str, str]"
) -> "tuple[Callable[[str], Any], Callable[[], list[str]]]":
    """Return `__getattr__` and `__dir__` of a module: `files` has its late names, by their file.

    A file that comes without names is itself such a name.
    """
    where = {name: file for file, names in files.items() for name in names.split() or [file]}

    def get(name: str) -> "Any":
        if name not in where:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        file = where[name]
        module = __import__(f"{__package__}.{file}", fromlist=("",))
        namespace[name] = value = module if name == file else getattr(module, name)
        return value

    return get, lambda: sorted({*namespace, *where} - {"TYPE_CHECKING"})
