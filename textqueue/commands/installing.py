"""``sej tq editors install``: copies the files for editors to the places where the editors look for them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

import textqueue
from sej.cli.shared.command import FilePath

_SOURCE: Final = Path(textqueue.__file__).parent / "editors"
_EDITORS: Final = ("vim", "nvim", "emacs", "nano", "vscode")
_INIT: Final = {"emacs": '(load "{}/textqueue-mode")', "nano": 'include "{}/tq.nanorc"'}
"""What a user adds to a file of an editor that does not look into directories."""


@click.group
def editors() -> None:
    """Set up editors for .tq files."""


@editors.command
@click.argument("names", metavar="[vim|nvim|emacs|nano|vscode]...", nargs=-1, type=click.Choice(_EDITORS))
@click.option("--home", type=FilePath(path_type=Path, file_okay=False), help="Another home directory than yours.")
def install(names: tuple[str, ...], home: Path | None) -> None:
    """Copy the files for editors into your home directory, and print where. Without a name: for those on the PATH.

    Older copies are replaced. Nothing else is changed: for Emacs and nano, the command prints the line for your
    init file. For VS Code, npm downloads the library of the language client, and builds the extension with it.

    Example: sej tq editors install vim
    """
    chosen = tuple(dict.fromkeys(names)) or tuple(
        name for name in _EDITORS if shutil.which("code" if name == "vscode" else name)
    )
    if not chosen:
        raise click.UsageError(f"found none of these editors: {', '.join(_EDITORS)}; name the ones to set up")
    base = Path.home() if home is None else home.absolute()
    if not base.is_dir():
        raise FileNotFoundError(
            f"{base}: this home directory does not exist; create it, or pass another one with --home"
        )
    for name in chosen:
        target = _target(name, base, own=home is None)
        for source, place in _files(name):
            copy = target / place
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
        click.echo(f"{name}: {target}")
        if name == "vscode" and (why := _build(target)):
            click.echo(f"sej: vscode: only the colours are set up, because {why}", err=True)
        if name in _INIT:
            folder = re.sub(r'(["\\])', r"\\\1", str(target)) if name == "emacs" else target
            click.echo(f"{name}: add to your init file: {_INIT[name].format(folder)}")


def _target(name: str, home: Path, *, own: bool) -> Path:
    """Return the directory that an editor reads."""
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") if own else home / ".local" / "share"
    return {
        "vim": home / ".vim" / "pack" / "sej" / "start" / "textqueue",
        "nvim": data / "nvim" / "site" / "pack" / "sej" / "start" / "textqueue",
        "emacs": home / ".emacs.d" / "textqueue",
        "nano": data / "nano",
        "vscode": home / ".vscode" / "extensions" / "sej.textqueue-1.0.0",
    }[name]


def _files(name: str) -> Iterator[tuple[Path, Path]]:
    """Yield the files for an editor, with their places below its directory. Neovim reads the files of Vim as well."""
    for folder in (_SOURCE / name, *([_SOURCE / "vim"] if name == "nvim" else ())):
        for source in sorted(folder.rglob("*")):
            if source.is_file():
                yield source, source.relative_to(folder)


def _build(extension: Path) -> str | None:
    """Build the extension of VS Code. If that fails, leave its colours only, and return why."""
    npm = shutil.which("npm")
    why = "npm is not on the PATH"
    if npm is not None:
        steps = ["install", "--no-audit", "--no-fund", "--ignore-scripts"], ["run", "vscode:prepublish"]
        done = [subprocess.run([npm, *step], cwd=extension, capture_output=True, check=False) for step in steps]
        shutil.rmtree(extension / "node_modules", ignore_errors=True)
        if not any(one.returncode for one in done):
            return None
        lines = done[-1].stderr.decode(errors="replace").split("\n")
        why = f"npm failed: {next((line for line in lines if line), 'without a reason')}"
    package = json.loads((extension / "package.json").read_bytes())
    del package["main"], package["activationEvents"]
    (extension / "package.json").write_text(json.dumps(package, indent=2))
    return why


@click.command
def lsp() -> None:
    """Run the language server for .tq files, on standard input and output. An editor starts it.

    It reports mistakes, colours messages by their status, shows which process has claimed a message, and offers to
    change the status or to add a variable. It changes the buffer of the editor only, never the file. It needs the extra
    `lsp`: pip install 'sej-journals[lsp]'.

    Example: sej tq lsp
    """
    from textqueue.lsp._server import make_server

    with os.fdopen(os.dup(1), "wb") as output:  # the server closes it at its end, and this command flushes its own
        make_server().start_io(stdout=output)
