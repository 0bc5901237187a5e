"""The compiled codec, the one thing that pyproject.toml cannot say: every `.pyx` beside its package is an extension.

Each is optional: without a C compiler the install succeeds and the pure Python twin serves.
"""

from pathlib import Path

from setuptools import Extension, setup

PACKAGES = ("sej", "shard", "hub", "textqueue", "kestrel", "pipeline")


def extensions() -> list[Extension]:
    """One extension for each `.pyx` file, named by its place: `sej/codec/_codec_c.pyx` is `sej.codec._codec_c`."""
    sources = sorted(path for package in PACKAGES for path in Path(package).rglob("*.pyx"))
    return [Extension(".".join(path.with_suffix("").parts), [path.as_posix()], optional=True) for path in sources]


# The C that Cython writes is no source: it stays in build/.
setup(ext_modules=extensions(), options={"build_ext": {"cython_c_in_temp": True}})
