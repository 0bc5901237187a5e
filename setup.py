"""What pyproject.toml cannot express: the compiled codec, and archives that depend on the source alone.

Every `.pyx` of the packages is an extension. Each is optional: without a C compiler the install succeeds, and the pure
Python twin is used.

Two builds of the same source give the same bytes, whatever the clock, the folder, the user or the umask.
"""

import gc
import gzip
import os
import tarfile
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist
from setuptools.errors import CompileError

PACKAGES = ("sej", "shard", "hub", "textqueue", "kestrel", "pipeline")
# The time of every file in the archives, unless the environment has another: 2020-02-02. The wheel reads it, too.
EPOCH = int(os.environ.setdefault("SOURCE_DATE_EPOCH", "1580601600"))
# Debug information would name the folder of the build.
COMPILE = ["-g0"] if os.name == "posix" else []


def extensions() -> list[Extension]:
    """One extension for each `.pyx` file, named by its place: `sej/codec/_codec_c.pyx` is `sej.codec._codec_c`."""
    sources = sorted(path for package in PACKAGES for path in Path(package).rglob("*.pyx"))
    return [
        Extension(".".join(path.with_suffix("").parts), [path.as_posix()], optional=True, extra_compile_args=COMPILE)
        for path in sources
    ]


class BuildExt(build_ext):  # type: ignore[misc, unused-ignore]
    """Asks for a C compiler first: without one, Cython would translate every extension for nothing."""

    def build_extensions(self) -> None:
        """Build the extensions, or none."""
        with tempfile.TemporaryDirectory() as folder:
            empty = Path(folder, "empty.c")
            empty.write_text("int nothing;\n")
            try:
                self.compiler.compile([str(empty)], output_dir=folder)
            except CompileError as error:
                self.warn(f"no C compiler that works, so the pure Python codec is used: {error}")
                return
        gc.disable()  # going through Cython's trees again and again took a third of its time
        super().build_extensions()


class Sdist(sdist):  # type: ignore[misc, unused-ignore]
    """Writes the archive without anything of this machine: times, owners, modes and the order of its folders."""

    def make_archive(self, base_name: str, *_: object, base_dir: str, **__: object) -> str:
        """Pack a folder; return the path of the archive."""
        archive = f"{base_name}.tar.gz"
        with (
            open(archive, "wb") as file,
            gzip.GzipFile("", "wb", mtime=EPOCH, fileobj=file) as packed,
            tarfile.open(mode="w", fileobj=packed, format=tarfile.PAX_FORMAT) as tar,
        ):
            for path in sorted(Path(base_dir).rglob("*")):
                if path.is_file():
                    tar.add(path, filter=plain)
        return archive


def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove what depends on the machine from an entry."""
    entry.mtime = EPOCH
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry


os.umask(0o022)  # the modes in the wheel are those of the files that the build creates
# The C that Cython writes stays in build/: it is not a source.
setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildExt, "sdist": Sdist},
    options={"build_ext": {"cython_c_in_temp": True}},
)
