"""Write the Python modules of every .proto file: `python -m tools.protos`, or `--check` to compare only.

They are committed, so that installing needs no protoc. The output depends on the version of grpcio-tools, which each
generated file names in its head; `--check` says when they differ.
"""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ("hub/wire/hub.proto",)
SUFFIXES = ("_pb2.py", "_pb2.pyi")


def generate(target: Path) -> None:
    """Write the modules below target, in the places they have in the tree.

    Raises:
        SystemExit: protoc refused a file, and said why.
    """
    from grpc_tools import protoc

    for proto in PROTOS:
        arguments = [f"--{kind}_out={target}" for kind in ("python", "pyi")]
        if protoc.main(["protoc", f"-I{ROOT}", *arguments, str(ROOT / proto)]):
            raise SystemExit(f"{proto} was refused")


def stale() -> list[str]:
    """The generated files that are not what this protoc writes."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        names = [proto.removesuffix(".proto") + suffix for proto in PROTOS for suffix in SUFFIXES]
        return [name for name in names if (ROOT / name).read_bytes() != (Path(folder) / name).read_bytes()]


def main() -> int:
    """Write or compare."""
    if "--check" in sys.argv[1:]:
        found = stale()
        print(f"differ, run `python -m tools.protos`: {', '.join(found)}" if found else "generated files are current")
        return bool(found)
    generate(ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
