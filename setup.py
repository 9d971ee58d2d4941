"""Builds the C core, the package's page and the list of its components. Everything else about it is
in pyproject.toml."""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import SetupError

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # of Debian 12, whose package needs no list of components
    bdist_wheel = object

MISSING = """
cqnotify needs a C compiler, CPython's headers and those of rdma-core 44 or later:
    Debian, Ubuntu:  apt-get install gcc python3-dev libibverbs-dev librdmacm-dev
    Fedora, RHEL:    dnf install gcc python3-devel rdma-core-devel
To use it, the library and a provider for your device must be there as well, from rdma-core 32 on
(libibverbs1 and ibverbs-providers; on Fedora and RHEL: libibverbs, which has both).
"""

# What the core includes, so that a missing header is told apart from a fault of ours; and the
# latest addition of those that it cannot do without.
PROBE = """
#include <Python.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
int main(void) { return IBV_QP_EX_WITH_ATOMIC_WRITE == 0; }
"""

# For our own tests: CQNOTIFY_DEBUG=asan,faults and the like. What each word adds for the compiler
# and for the linker. Python's own flags have -fwrapv, which UBSan takes for a permission. A UBSan
# of the extension's own does not get mixed up with ASan's library, and heeds its own options.
SANITIZE = "-fsanitize=address,undefined"
DEBUG = {
    "asan": (
        ["-O1", SANITIZE, "-fno-sanitize-recover=undefined", "-fno-wrapv"],
        [SANITIZE, "-static-libubsan", "-Wl,-Bsymbolic"],
    ),
    # Fewer inlined functions: a report then says which one.
    "tsan": (["-O1", "-fsanitize=thread"], ["-fsanitize=thread"]),
    "coverage": (
        ["-O0", "--coverage", "-fprofile-update=atomic"],
        ["--coverage"],
    ),
    "faults": (["-DCQN_FAULTS"], []),
}
# Python's own flags have -g, too. What it makes is three quarters of the core, and of no use where
# the sources are not: only the names of functions stay, for backtraces. The tools of Linux
# distributions keep it in packages of its own, and ask for it by CFLAGS.
STRIP = "-Wl,--strip-debug"
wanted = {"-g", "-g1", "-g2", "-g3", "-ggdb"} & set(os.environ.get("CFLAGS", "").split())

debug = os.environ.get("CQNOTIFY_DEBUG", "").replace(",", " ").split()
for word in debug:
    if word not in DEBUG:
        raise SetupError(f"CQNOTIFY_DEBUG knows {', '.join(DEBUG)}; not '{word}'.")


def is_built(source: Path) -> bool:
    """Only builds for tests have sources of csrc/faults; csrc/check is a library of its own."""
    if source.parent.name == "check":
        return False
    word = "coverage" if source.stem == "gcov_dump" else "faults"
    return source.parent.name != "faults" or word in debug


# CQNOTIFY_PGO=1, for the wheels: gcc builds the core once to count what the benchmarks run, and
# again for that (profile-guided), all files as one (link-time). gcc wants the same level in both:
# with -O2 the core would be a tenth smaller, and a drained completion cost 14 % more of it. From
# counted values gcc would copy a completion byte by byte (rep movs).
PGO_COUNTS = ["-O3", "-fno-profile-values", "-fprofile-generate", "-fprofile-update=atomic"]
PGO = [
    *["-O3", "-fno-profile-values", "-fprofile-use", "-fprofile-partial-training"],
    *["-Wno-missing-profile", "-flto=auto"],
]
pgo = os.environ.get("CQNOTIFY_PGO") == "1"

# Programs of the lab's guests, linked to libc alone: no compiler is needed where the package is
# installed. The guests are for x86-64.
LAB = ("guest", "seeded")


class BuildCore(build_ext):
    def finalize_options(self) -> None:
        super().finalize_options()
        self.beside_sources = bool(self.inplace)  # which setuptools hides while it builds
        if debug or pgo:
            self.force = True  # what is there may be of another kind
        if debug:
            self.build_temp = "build/debug"  # kept, even by pip: gcov finds its notes there

    def build_extensions(self) -> None:
        if not sys.platform.startswith("linux"):
            raise SetupError("cqnotify is for Linux: it wraps rdma-core's libibverbs.")
        self.probe()
        if debug or pgo:  # notes of files that have gone, and counts of other trainings
            shutil.rmtree(self.build_temp, ignore_errors=True)
        beside = self.beside_sources or self.editable_mode
        if not (debug or wanted or beside):
            for extension in self.extensions:
                extension.extra_link_args.append(STRIP)
        if pgo:
            if debug or beside:
                raise SetupError("CQNOTIFY_PGO is not for builds in place or for tests.")
            self.train(self.extensions[0])
        super().build_extensions()
        if platform.machine() == "x86_64" and not (debug or beside):
            self.build_lab()

    def train(self, core: Extension) -> None:
        """Count what is run often; the counts lie beside the objects, where gcc looks for them."""
        folder = Path(self.build_temp, "training")
        for package in ("cqnotify", "benchmarks"):
            shutil.copytree(package, folder / package)
        built = self.build_lib, core.extra_compile_args, core.extra_link_args
        self.build_lib = str(folder)
        core.extra_compile_args = [*core.extra_compile_args, *PGO_COUNTS]
        core.extra_link_args = [*core.extra_link_args, *PGO_COUNTS]
        self.build_extension(core)
        subprocess.run([sys.executable, "-m", "benchmarks.training"], cwd=folder, check=True)
        if not any(Path(self.build_temp).rglob("*.gcda")):
            raise SetupError("CQNOTIFY_PGO needs gcc: this compiler left no counts.")
        self.build_lib, compile_args, link_args = built
        core.extra_compile_args, core.extra_link_args = [*compile_args, *PGO], [*link_args, *PGO]

    def build_lab(self) -> None:
        for name in LAB:
            out = str(Path(self.build_lib, "cqnotify/lab", name))
            objects = self.compiler.compile(
                [f"cqnotify/lab/{name}.c"],
                output_dir=self.build_temp,
                extra_postargs=["-std=c11", "-O2"],
            )
            link = self.compiler.link_shared_object
            if name == "guest":
                link = self.compiler.link_executable
            link(objects, out, extra_postargs=["-s"])

    def probe(self) -> None:
        """Name what is missing, instead of a page of compiler errors."""
        folder = Path(self.build_temp) / "probe"
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / "probe.c"
        source.write_text(PROBE)
        try:
            objects = self.compiler.compile(
                [str(source)], output_dir=str(folder), include_dirs=self.include_dirs
            )
            self.compiler.link_shared_object(objects, str(folder / "probe.so"))
        except Exception:  # what the compiler said of it stands above
            raise SetupError(MISSING) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class BuildWheel(bdist_wheel):
    def write_wheelfile(self, wheelfile_base: str, **options: str) -> None:
        """Write the list of components beside the metadata; an editable install has none."""
        super().write_wheelfile(wheelfile_base, **options)
        if self.bdist_dir and Path(self.bdist_dir, "cqnotify").is_dir():
            listed = Path(wheelfile_base, "sboms/cqnotify.cdx.json")
            listed.parent.mkdir()
            listed.write_text(components(Path(self.bdist_dir)))


def components(folder: Path) -> str:
    """The compiled files below a folder, as CycloneDX lists components, for PEP 770. They are all
    from these sources: no library of others is in the wheel."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    listed = [
        {
            "type": "file",
            "name": str(path.relative_to(folder)),
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}],
            "licenses": [{"license": {"id": "MIT"}}],
        }
        for path in files
        if (data := path.read_bytes())[:4] == b"\x7fELF"
    ]
    whole = {"type": "library", "name": "cqnotify", "version": version}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**whole, "purl": f"pkg:pypi/cqnotify@{version}"}},
        "components": listed,
    }
    return json.dumps(document, indent=2) + "\n"


def page(url: str, version: str) -> str:
    """README.md, for an index: there are no files beside it. What it links to is this version's at
    `url`, where the repository is; or, without one, a name."""

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        return f"[{text}]({url}/blob/v{version}/{target})" if url else text

    readme = Path("README.md").read_text(encoding="utf-8")
    return re.sub(r"\[([^\]]*)\]\((?!https?:|#)([^)]+)\)", link, readme)


url = os.environ.get("CQNOTIFY_URL", "").rstrip("/")
(version,) = re.findall(r'^__version__ = "(.*)"$', Path("cqnotify/__init__.py").read_text(), re.M)

setup(
    long_description=page(url, version),
    long_description_content_type="text/markdown",
    project_urls={
        "Source": url,
        "Documentation": f"{url}/blob/v{version}/docs/index.md",
        "Changelog": f"{url}/blob/v{version}/CHANGELOG.md",
    }
    if url
    else {},
    ext_modules=[
        Extension(
            "cqnotify._core",
            sources=sorted(str(p) for p in Path("csrc").rglob("*.c") if is_built(p)),
            depends=sorted(str(p) for p in Path("csrc").rglob("*.h")),
            include_dirs=["csrc"],
            # libibverbs is loaded at run time. Before glibc 2.34 these two were not in libc.
            libraries=["dl", "pthread"],
            extra_compile_args=[
                # A thread that ends in a call of Python must not run what cleans up after ours.
                *["-std=c11", "-fvisibility=hidden", "-fno-exceptions"],
                *(["-g", "-UNDEBUG"] if debug else ["-O3"]),
                *(flag for word in debug for flag in DEBUG[word][0]),
            ],
            extra_link_args=[flag for word in debug for flag in DEBUG[word][1]],
        ),
        # No module: the dynamic linker loads it into the programs that `cqnotify check` runs.
        Extension(
            "cqnotify._observer",
            sources=sorted(str(p) for p in Path("csrc/check").glob("*.c")),
            depends=sorted(str(p) for p in Path("csrc/check").glob("*.h")),
            define_macros=[("_GNU_SOURCE", None)],
            libraries=["dl"],
            extra_compile_args=["-std=c11", "-fvisibility=hidden"]
            + (["-g", "-UNDEBUG"] if debug else ["-O2"]),
            extra_link_args=["-static-libgcc"],
            # It needs rtld-audit(7) of glibc, and compares completions as little-endian words.
            optional=platform.libc_ver()[0] != "glibc" or sys.byteorder == "big",
        ),
    ],
    cmdclass={
        "build_ext": BuildCore,
        **({"bdist_wheel": BuildWheel} if bdist_wheel is not object else {}),
    },
)
