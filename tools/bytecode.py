"""Add bytecode to the archives from which Spark's Python processes import: Python itself can store none in them.

Spark puts `pyspark.zip` first in the path of every Python process that it starts. Without bytecode each process
compiles what it imports, which takes more than half of the CPU time of its start.

    python -m tools.bytecode ARCHIVE...
"""

import py_compile
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path


def archives(venv: Path) -> list[Path]:
    """Spark's archives of Python modules in an environment."""
    return sorted(venv.glob("lib/python*/site-packages/pyspark/python/lib/*.zip"))


def add(archive: Path) -> None:
    """Put the bytecode of each module next to it, for the Python that runs this."""
    fresh = archive.with_name(f"{archive.name}.new")
    shutil.copyfile(archive, fresh)
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH  # times in an archive depend on the time zone
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(fresh, "a", zipfile.ZIP_DEFLATED) as file:
        names = set(file.namelist())
        for name in sorted(names):
            if name.endswith(".py") and f"{name}c" not in names:
                source, compiled = file.extract(name, folder), Path(folder, "compiled")
                py_compile.compile(source, str(compiled), str(archive / name), quiet=2, invalidation_mode=unchecked)
                if compiled.exists():  # if not, the module is for another Python
                    file.write(compiled, f"{name}c")
                    compiled.unlink()
    fresh.replace(archive)


if __name__ == "__main__":
    for word in sys.argv[1:]:
        add(Path(word).absolute())
