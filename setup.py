"""Builds the C core. Everything else about the package is in pyproject.toml."""

import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import SetupError

MISSING = """
cqnotify needs a C compiler, CPython's headers and the headers of libibverbs:
    Debian, Ubuntu:  apt-get install gcc python3-dev libibverbs-dev
    Fedora, RHEL:    dnf install gcc python3-devel rdma-core-devel
To use it, the library and a provider for your device must be there as well
(libibverbs1 and ibverbs-providers; on Fedora and RHEL: rdma-core).
"""

# What the core includes, so that a missing header is told apart from a fault of ours.
PROBE = "#include <Python.h>\n#include <infiniband/verbs.h>\nint main(void) { return 0; }\n"


class BuildCore(build_ext):
    def build_extensions(self) -> None:
        if not sys.platform.startswith("linux"):
            raise SetupError("cqnotify is for Linux: it wraps rdma-core's libibverbs.")
        self.probe()
        super().build_extensions()

    def probe(self) -> None:
        """Say what is missing in words, instead of a page of compiler errors."""
        folder = Path(self.build_temp) / "probe"
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / "probe.c"
        source.write_text(PROBE)
        try:
            objects = self.compiler.compile(
                [str(source)], output_dir=str(folder), include_dirs=self.include_dirs
            )
            self.compiler.link_shared_object(
                objects, str(folder / "probe.so"), libraries=["ibverbs"]
            )
        except Exception:  # what the compiler said of it stands above
            raise SetupError(MISSING) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)


setup(
    ext_modules=[
        Extension(
            "cqnotify._core",
            sources=sorted(str(p) for p in Path("csrc").glob("*.c")),
            depends=sorted(str(p) for p in Path("csrc").glob("*.h")),
            libraries=["ibverbs"],
            extra_compile_args=["-std=c11", "-fvisibility=hidden"],
        )
    ],
    cmdclass={"build_ext": BuildCore},
)
