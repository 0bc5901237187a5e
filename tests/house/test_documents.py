"""What the documents say is so: their blocks run, their commands exist, and their links lead somewhere.

The blocks of a page, ``python`` and ``sh``, run in the order of the page, in one directory that was empty before; those
of a shell in a terminal. A warning, or an exit code other than 0, fails it. A ``text`` block is the output of the block
before it. Other text is in a block without a language. A page about Spark runs in the session that the tests share.

What is not run is a ``console`` block: it needs another machine, another account, minutes, or a shell of one's own. Its
commands, and those in the text, must be commands of `sej` or targets of make, with options that they have.

The tutorial is followed as a person would, with the wheel installed. A block of Python is saved under the name in its
first line. Each line of a shell block is typed. A text block after it is the output of these lines. In it, ``…`` is any
text of a line, or alone any lines.

Every example runs without arguments, in an empty working directory where it leaves what it makes, with exit code 0. A
warning is an error, except in those named `spark_*.py`, because Spark's own code warns.
"""

import ast
import os
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from sej.cli.app import app
from tests.house.house import ROOT, forked, matches, typed

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("[!_]*.md"), *(ROOT / "docs").glob("[!_]*/**/*.md")])
TUTORIAL = ROOT / "docs" / "tutorial.md"
WORDS_MAX = 40_000
# No code: data, drawings, and what Sphinx expands.
DATA = {"", "json", "{image}", "{toctree}", "{eval-rst}", "{include}", "{literalinclude}"}
DATA |= {"{sej-commands}", "{sej-errors}", "{sej-options}"}


def blocks(page: Path) -> list[tuple[int, str, str]]:
    """(line, language, text) of every block of a page."""
    text = page.read_text()
    found = re.finditer(r"^```(\S*)[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, block.start()) + 1, block[1], block[2]) for block in found]


def pages_that_run() -> Iterator[Path]:
    for page in PAGES:
        if page != TUTORIAL and any(language in ("python", "sh") for _, language, _ in blocks(page)):
            yield page


def needs_spark(page: Path) -> bool:
    return any(language == "python" and "pipeline.session" in text for _, language, text in blocks(page))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in pages_that_run() if not needs_spark(page)], ids=name_of)
def test_blocks_run(page: Path, tmp_path: Path) -> None:
    printed = ""
    for line, language, text in blocks(page):
        if language == "text":
            assert matches(text, printed), f"{page.name}:{line}: the page says\n{text}\nit was\n{printed}"
            continue
        if language == "sh":
            code, printed = typed(text, tmp_path)
        elif language == "python":
            done = forked(f"{page.name}:{line}", text, tmp_path)
            code, printed = done.returncode, done.stdout + done.stderr
        else:
            continue
        assert code == 0, f"{page.name}:{line}\n{printed}"
        assert "Traceback" not in printed, f"{page.name}:{line}\n{printed}"


@pytest.mark.spark
@pytest.mark.usefixtures("spark_directory")
@pytest.mark.parametrize("page", [page for page in pages_that_run() if needs_spark(page)], ids=name_of)
def test_blocks_run_in_the_session_that_the_tests_share(page: Path) -> None:
    for line, language, text in blocks(page):
        assert language not in ("sh", "text"), f"{page.name}:{line}: no shell here, and what is printed is not seen"
        if language == "python":
            exec(compile(text, f"{page.name}:{line}", "exec"), {"__name__": "__main__"})


def test_no_code_escapes() -> None:
    known = {"python", "sh", "text", "console"} | DATA
    unknown = [(name_of(page), found) for page in PAGES for _, found, _ in blocks(page) if found not in known]
    assert not unknown, "a block that is not run is a console block"
    running = {*pages_that_run(), TUTORIAL}
    for page in PAGES:
        assert page in running or "text" not in {language for _, language, _ in blocks(page)}, (
            f"{name_of(page)}: a text block is the output of a block that runs"
        )
    for page in PAGES:
        outside = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        found = re.findall(r"^\n {4}\S.*$", outside, re.MULTILINE)
        assert not found, f"{name_of(page)}: no test runs an indented block: fence it"


def commands(page: Path) -> Iterator[str]:
    """Every command that a page tells the reader to type."""
    for _, language, text in blocks(page):
        if language in ("sh", "console"):
            yield from re.findall(r"^(?:\$ )?(.+)$", text.replace("\\\n", " "), re.MULTILINE)
    yield from re.findall(r"`((?:sej|make) [^`]+)`", re.sub(r"\s*\n\s*", " ", page.read_text()))


def problem(words: list[str]) -> str | None:
    """What is wrong with a command, by its words; None where all is well."""
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        wrong = [word for word in words[1:] if word.islower() and "=" not in word and word not in targets]
        return f"make has no target {wrong[0]}" if wrong else None
    found: click.Command = app
    if words[1:2] == ["help"]:
        del words[1]
    for place, word in enumerate(words[1:], 1):
        if word == "--":
            return None
        if word.startswith("-") and word != "-" and not word[1:].isdecimal():
            known = {name for param in found.params for name in (*param.opts, *param.secondary_opts)} | {"--help", "-h"}
            if word.split("=")[0] not in known:
                return f"{' '.join(words[:place])} has no option {word}"
        elif isinstance(found, click.Group):
            below = found.get_command(click.Context(found), word)
            if below is None:
                return f"{' '.join(words[: place + 1])} is no command"
            found = below
    return None


def wrong_commands(page: Path) -> Iterator[str]:
    for line in commands(page):
        for part in re.split(r"\|\||&&|[|;&]", line):
            words = shlex.split(part.strip().removesuffix("..."), comments=True)
            while words and re.fullmatch(r"\w+=.*", words[0]):
                del words[0]
            if words and words[0] in ("sej", "make") and (found := problem(words)):
                yield f"{name_of(page)}: {found}"


def test_commands_exist() -> None:
    assert sum(1 for page in PAGES for _ in commands(page)) > 300
    assert not [wrong for page in PAGES for wrong in wrong_commands(page)]


def test_a_wrong_command_is_found() -> None:
    assert problem(["sej", "no-such"]) == "sej no-such is no command"
    assert problem(["sej", "hub", "push", "--no-such"]) == "sej hub push has no option --no-such"
    assert problem(["make", "nosuch"]) == "make has no target nosuch"
    assert problem(["sej", "queue", "get", "mails", "--", "cat", "--no-such"]) is None


def test_all_pages_together_can_be_read() -> None:
    """As `wc -w` counts."""
    pages = [page for page in PAGES if page.parent != ROOT or page.name in ("README.md", "CONTRIBUTING.md")]
    words = sum(len(page.read_text().split()) for page in pages)
    assert words <= WORDS_MAX, f"{words} words: a page that grows makes another one shorter"


def test_links_lead_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())]
    inside = [(page, link) for page, link in links if "://" not in link]
    assert len(inside) > 100
    assert not [(name_of(page), link) for page, link in inside if not (page.parent / link).exists()]


def test_every_row_about_another_project_has_its_source() -> None:
    """A link; for our own figures, the row of `make bench` that prints them; of features, each cell but "no"."""
    page = (ROOT / "docs" / "comparison.md").read_text()
    bench = "".join(path.read_text() for path in (ROOT / "benchmarks").glob("*.py"))
    tables = re.findall(r"^(\| .*)\n\|-.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    heads = [head for head, _ in tables]
    for part in (
        "schedules | results | compression |",
        "languages",
        "a person edits",
        "columns",
        "row of `make bench`",
    ):
        assert sum(part in head for head in heads) == 1, part
    for head, body in tables:
        for row in body.splitlines():
            name, *cells = row.strip("| ").split(" | ")
            if "make bench" in head:
                assert f'"{cells[0].strip("`")}"' in bench, row
            elif "languages" in head:
                assert not [cell for cell in cells if cell != "no" and "](" not in cell], name
            else:
                assert "](" in row, name


@pytest.mark.parametrize("folder", ["formats", "howto", "reference"])
def test_an_index_has_links_to_all_pages_of_its_folder(folder: str) -> None:
    """As links, so that they work where no Sphinx builds the site."""
    pages = list((ROOT / "docs" / folder).glob("*.md"))
    lists = [page.read_text() for page in pages if page.name in ("index.md", "more.md")]
    assert {name for text in lists for name in re.findall(r"\]\((\S+\.md)\)", text)} >= {
        page.name for page in pages if page.name != "index.md"
    }


@cache
def defined(module: Path) -> set[str]:
    """What a file of tests defines at its top level."""
    names = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def test_architecture_names_every_subpackage() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    packages = re.findall(r"^- `(\w+)`\n((?:  - .*\n)+)", page, re.MULTILINE)
    assert len(packages) == 6
    for package, part in packages:
        named = set(re.findall(r"`([\w.]+)`", "".join(re.findall(r"^  - (.*?): ", part, re.MULTILINE))))
        folders = {path.name for path in (ROOT / package).iterdir() if path.is_dir() and path.name[0] not in "_."}
        assert folders == {name for name in named if "." not in name}, package
        assert all((ROOT / package / name).is_file() for name in named if name.endswith(".py")), package


def test_the_tests_that_are_named_exist() -> None:
    named = {found for page in PAGES for found in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", page.read_text())}
    assert len(named) > 80
    assert not [path for path, _ in named if not (ROOT / path).is_file()]
    assert not [(path, name) for path, name in named if name and name not in defined(ROOT / path)]


def test_the_spark_of_the_container_image_is_the_one_that_is_tested() -> None:
    tag = re.search(
        r"^FROM apache/spark:(\d+\.\d+)\.", (ROOT / "docs" / "howto" / "cluster.md").read_text(), re.MULTILINE
    )
    assert tag is not None and tag[1] == version("pyspark").rpartition(".")[0]


def test_every_promise_names_its_tests() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    promises = re.findall(r"^- \*\*[A-HP]\d+\*\* .*$", text, re.MULTILINE)
    assert len(promises) > 70 and "\n| " not in text, "a promise is an item of a list"
    assert not [promise for promise in promises if "`tests/" not in promise]


OURS = {"sej sql ": "-m sej sql ", "python flights.py": "flights.py", "python delays.py": "delays.py"}
"""What needs DuckDB and the flights, which are not installed a second time."""


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory, clean: Path) -> dict[str, str]:
    """What each line printed; it must end well."""
    directory = tmp_path_factory.mktemp("first-hour")
    env = {"PATH": f"{clean.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONWARNINGS": "error"}
    printed: dict[str, str] = {}
    output = ""
    for _, language, code in blocks(TUTORIAL):
        if language == "console":
            continue
        if language == "text":
            assert matches(code, output), f"the page says\n{code}\nit was\n{output}"
            continue
        if language == "python":
            (directory / code.split("\n", 1)[0].removeprefix("# ")).write_text(code)
            continue
        output = ""
        for line in code.splitlines():
            start = next(filter(line.startswith, OURS), "")
            ours = f"{sys.executable} {OURS[start]}{line.removeprefix(start)}" if start else line
            ended, answer = typed(ours, directory, **env)
            assert ended == 0 and "Traceback" not in answer, f"$ {line}\n{answer}\nexit code {ended}"
            output += answer
            printed[line] = printed.get(line, "") + answer
    return printed


def test_the_first_hour(followed: dict[str, str]) -> None:
    printed = followed
    assert printed["sej count orders"] == "3\n"
    assert printed["python producer.py"] == "appended as message 3\n"
    # Run three times: four messages, then nothing, then the new one.
    assert [line.split()[0] for line in printed["python reader.py"].splitlines()] == ["0", "1", "2", "3", "4"]
    assert printed["python reader.py"].endswith("4 b'carol' b'1 melon'\n")
    assert "invalid literal" in printed["python jobs.py"]
    workers = printed["python worker.py & python worker.py & wait"]
    assert re.search(r"^worker \d+, shard \d", workers, re.MULTILINE)  # lines of two processes may mix
    assert sum(map(int, re.findall(r"handled (\d+)", workers))) == 100
    assert "mailing order" in next(text for line, text in printed.items() if line.startswith("sej shard work"))
    assert "sending to alice" in printed["sej queue get mails -- xargs echo sending"]
    assert printed["cat todo.tq"].startswith("#queue\n\\seq=000000000001\n=ship order 17\n-call carol\n")
    assert printed["sej tail todo"].count("\n") == 2
    assert "sound: 1 segment" in printed["sej verify orders"]


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SPARK_EXAMPLES = [path for path in EXAMPLES if path.stem.startswith("spark_")]
PROGRAMS = [path for path in EXAMPLES if path not in SPARK_EXAMPLES]


@pytest.mark.parametrize("example", PROGRAMS, ids=lambda path: path.stem)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    done = forked(str(example), example.read_text(), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.spark
@pytest.mark.usefixtures("spark_directory")
@pytest.mark.parametrize("example", SPARK_EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("default")
def test_example_runs_in_a_session_that_is_there(example: Path) -> None:
    runpy.run_path(str(example), run_name="__main__")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short_and_listed(example: Path) -> None:
    text = example.read_text()
    assert text.startswith('"""')
    assert len(text.splitlines()) < 40
    assert f"[{example.name}]({example.name})" in (example.parent / "README.md").read_text()
