"""What holds for every command of every package: walked, not listed."""

import click
import pytest

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


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_an_empty_path_is_not_the_current_directory(words: tuple[str, ...]) -> None:
    for parameter in LEAVES[words].params:
        if isinstance(parameter.type, click.Path):
            with pytest.raises(click.BadParameter, match="got an empty path"):
                parameter.type.convert("", parameter, None)
