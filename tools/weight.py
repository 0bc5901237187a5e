"""How much there is to carry: lines of code, modules, callables handed over, and calls on the ways that users take.

    python -m tools.weight          the table
    python -m tools.weight --json   the same, for programs

A line of code holds something other than a comment or a docstring. Neither texts nor blank lines
count. Generated modules (``*_pb2*``) are left out. The ceilings are in ``tests/house/test_weight.py``.
"""

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("sej", "shard", "textqueue", "kestrel", "hub", "pipeline")
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}

# Each way: what is prepared, and the call that is counted.
WAYS = {
    "open a clean journal": ("sej.Writer('j').close()", "sej.Writer('j')"),
    "queue get": ("q = sej.open_queue('q', 'w'); q.put(b'a'); q.get().done(); q.put(b'b')", "q.get()"),
    "claim in a .tq file": (
        "open('a.tq', 'w').write('-a\\n-b\\n-c\\n')\nq = textqueue.TextQueue('a.tq')\n"
        "with q.claim('w'): pass\nc = q.claim('w')",
        "c.__enter__()",
    ),
}


def code_lines(source: str) -> int:
    """Count the lines of Python or Cython that hold code."""
    lines: set[int] = set()
    statement: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NEWLINE:
            # A statement that is nothing but strings documents a module, a class, a function or a field.
            if any(part.type != tokenize.STRING for part in statement):
                for part in statement:
                    lines.update(range(part.start[0], part.end[0] + 1))
            statement = []
        elif token.type not in _NO_CODE:
            statement.append(token)
    return len(lines)


def modules(folder: Path, *endings: str) -> list[Path]:
    """Return the modules below a folder, without generated ones."""
    found = (path for path in sorted(folder.rglob("*")) if path.suffix in endings)
    return [path for path in found if "_pb2" not in path.name and "__pycache__" not in path.parts]


def callables(source: str) -> int:
    """Count the parameters whose type is, or contains, a Callable."""

    def parameters(tree: ast.AST) -> Iterator[ast.arg]:
        for node in ast.walk(tree):
            if isinstance(node, ast.arguments):
                yield from (*node.posonlyargs, *node.args, *node.kwonlyargs)

    given = (one.annotation for one in parameters(ast.parse(source)) if one.annotation is not None)
    return sum("Callable" in ast.unparse(annotation) for annotation in given)


def sizes(root: Path = ROOT) -> dict[str, dict[str, int]]:
    """Return for each package, and for the tests, what there is to carry."""
    table: dict[str, dict[str, int]] = {}
    for package in (*PACKAGES, "tests"):
        python = modules(root / package, ".py")
        cython = modules(root / package, ".pyx", ".pxd")
        texts = [path.read_text() for path in python]
        table[package] = {
            "code": sum(map(code_lines, texts)),
            "modules": len(python),
            "cython": sum(len(path.read_text().splitlines()) for path in cython),
            "extensions": sum(path.suffix == ".pyx" for path in cython),
            "callables": sum(map(callables, texts)),
        }
    return table


def calls(way: str, root: Path = ROOT) -> tuple[int, int]:
    """Return how many functions of the packages a way calls, and in how many files, on the Python codec."""
    before, counted = WAYS[way]
    program = f"""
import sys, json
sys.path.insert(0, {str(root)!r})
import sej, textqueue
files = []
def note(frame, event, arg):
    name = frame.f_code.co_filename
    if event == 'call' and name.startswith({tuple(f"{root}/{package}/" for package in PACKAGES)!r}):
        files.append(name)
{textwrap.dedent(before)}
sys.setprofile(note)
kept = {counted}
sys.setprofile(None)
print(json.dumps([len(files), len(set(files))]))
"""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=folder,
            env={**os.environ, "SEJ_CODEC": "python"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        sys.exit(f"{way}: {done.stderr}")
    number, files = json.loads(done.stdout.splitlines()[-1])
    return number, files


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="another checkout")
    given = parser.parse_args()
    root = given.root.resolve()
    table = sizes(root)
    ways = {way: calls(way, root) for way in WAYS}
    if given.json:
        print(json.dumps({"sizes": table, "calls": ways}))
        return
    names = list(table["sej"])
    rows = {**table, "packages": {name: sum(table[package][name] for package in PACKAGES) for name in names}}
    print(f"{'':22}" + "".join(f"{name:>12}" for name in names))
    for package in (*PACKAGES, "packages", "tests"):
        print(f"{package:22}" + "".join(f"{rows[package][name]:12,}" for name in names))
    for way, (number, files) in ways.items():
        print(f"{way:22}{number:12,} calls in {files} files")


if __name__ == "__main__":
    main()
