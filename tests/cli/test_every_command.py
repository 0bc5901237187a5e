"""What holds for every command of every package: walked, not listed."""

import json
from pathlib import Path

import click
import pytest

import sej as library
from tests.cli.inside import inside, leaves

LEAVES = dict(leaves())
CHANGING = {
    f"{group} {word}".strip()
    for group, words in {
        "": "append clean export forward index relay reset ship ui worker",  # ui: a page, not lines
        "archive": "move restore",
        "hub": "clean push serve token",
        "kestrel": "export import pack",
        "queue": "cancel get pause purge put redrive requeue resume",
        "queue schedule": "add pause remove resume",
        "schema": "remove set",
        "shard": "reshard work",
        "spark": "archive compact dedupe finish reshard restore",
        "tq": "add archive done drain edit fail give-back lsp reopen split undo",
        "tq editors": "install",
    }.items()
    for word in words.split()
}
"""These change something, or start what runs; all others only look."""


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_help_has_an_example_and_wrong_words_end_in_usage(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = inside(monkeypatch, *words, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"Usage: sej {' '.join(words)}" in done.out.decode()
    assert f"Example: {'' if words == ('append',) or words == ('queue', 'put') else 'sej '}" in done.out.decode()
    done = inside(monkeypatch, *words, "--no-such-option")
    assert (done.code, done.out) == (2, b"")
    assert "No such option" in done.err or "Missing argument" in done.err
    for option in LEAVES[words].params:
        if isinstance(option, click.Option):
            assert option.help, option.opts


def test_every_command_that_looks_takes_json() -> None:
    assert set(map(" ".join, LEAVES)) >= CHANGING
    without = {
        " ".join(words)
        for words, command in LEAVES.items()
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert not without - CHANGING


def required(command: click.Command) -> list[click.Argument]:
    return [one for one in command.params if isinstance(one, click.Argument) and one.required]


@pytest.mark.parametrize("words", [words for words in LEAVES if required(LEAVES[words])], ids=" ".join)
def test_nothing_is_wrong_usage(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    done = inside(monkeypatch, *words)
    assert done.code == 2
    assert "Usage: sej" in done.err


def test_json_is_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line that a command prints with --json is JSON."""
    journal = tmp_path / "root" / "orders"
    with library.Writer(journal) as writer:
        writer.append(b"\xff", "ключ".encode(), 255)
        writer.append(b"", b"", 0, library.NO_TIMESTAMP)
    with library.Offset(journal, "reader") as kept:
        kept.commit(1)
    library.open_queue(journal, "work").close()
    (journal / "schema.json").write_text('{"schema": "id int", "format": "json", "definition": null}')
    segment = next((journal / "jnl").iterdir())
    commands: list[list[str | Path]] = [
        ["count", journal],
        ["scan", journal],
        ["tail", journal],
        ["dump", segment],
        ["follow", "--timeout", "0", "--start", "0", journal],
        ["offset", journal],
        ["timestamp", journal, "0"],
        ["timestamp", journal, "1"],
        ["file", journal],
        ["file", journal, "1"],
        ["stat", journal],
        ["top", "--once", journal],
        ["doctor", journal],
        ["repair", "--dry-run", journal],
        ["queue", "ls", "--name", "work", journal],
        ["queue", "show", "--name", "work", journal, "0"],
        ["queue", "peek", "--name", "work", "--count", "2", journal],
        ["queue", "stats", "--name", "work", journal],
        ["shard", "ls", journal],
        ["schema", "show", journal],
        ["spark", "count", journal],
    ]
    for words in commands:
        done = inside(monkeypatch, *words, "--json")
        assert (done.code, done.err) == (0, ""), words
        assert done.out
        for line in done.out.splitlines():
            assert isinstance(json.loads(line), dict)


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_an_empty_path_is_not_the_current_directory(words: tuple[str, ...]) -> None:
    for parameter in LEAVES[words].params:
        if isinstance(parameter.type, click.Path):
            with pytest.raises(click.BadParameter, match="got an empty path"):
                parameter.type.convert("", parameter, None)
