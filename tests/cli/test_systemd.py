"""The units in examples/systemd: systemd accepts them, and what they start are command lines that there are."""

import configparser
import ctypes
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.cli.command import COMMAND, ENV, ROOT
from tests.cli.inside import leaves
from tests.sej.support import write

UNITS = ROOT / "examples" / "systemd"
SERVICES = sorted(UNITS.glob("*.service"))
_PR_SET_MDWE = 65


def settings(path: Path) -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None, strict=True)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read(path)
    return found


@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.name)
def test_what_is_started_is_a_command_line(service: Path) -> None:
    program, *words = shlex.split(settings(service)["Service"]["ExecStart"])
    assert program == "/usr/local/bin/sej"
    command, rest = next(
        (command, words[len(path) :]) for path, command in leaves() if tuple(words[: len(path)]) == path
    )
    command.make_context(command.name, rest, parent=click.Context(click.Group("sej"))).close()


def test_every_timer_has_its_service_and_the_page_names_all() -> None:
    page = (ROOT / "docs" / "howto" / "systemd.md").read_text()
    for timer in UNITS.glob("*.timer"):
        assert timer.with_suffix(".service") in SERVICES
    for unit in UNITS.iterdir():
        assert unit.name in page


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_them(tmp_path: Path) -> None:
    """With programs that are there, and instances of the templates."""
    sej = tmp_path / "sej"
    sej.write_text("#!/bin/sh\n")
    sej.chmod(0o755)
    units = tmp_path / "units"
    shutil.copytree(UNITS, units)
    for unit in sorted(units.glob("*.*")):
        if unit.is_file():
            text = unit.read_text().replace("/usr/local/bin/sej", str(sej)).replace("/usr/local/bin/ship", str(sej))
            unit.write_text(text)
    names = [str(unit).replace("@.", "@orders.") for unit in units.iterdir() if unit.suffix in (".service", ".timer")]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *names], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    security = ["systemd-analyze", "security", "--offline=true", "--threshold=30", str(units / "sej-hub.service")]
    done = subprocess.run(security, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def deny_write_execute() -> None:
    """What MemoryDenyWriteExecute= does, as far as the kernel can: no memory that was writable is ever executed."""
    if ctypes.CDLL(None).prctl(_PR_SET_MDWE, 1, 0, 0, 0) != 0:
        raise OSError("the kernel has no PR_SET_MDWE")


def has_mdwe() -> bool:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import ctypes, sys; sys.exit(ctypes.CDLL(None).prctl({_PR_SET_MDWE}, 1, 0, 0, 0) != 0)",
        ],
        check=False,
    )
    return done.returncode == 0


@pytest.mark.skipif(not has_mdwe(), reason="the kernel has no PR_SET_MDWE")
@pytest.mark.parametrize("words", [["tail", "-f"], ["follow", "--reader", "r"]])
def test_following_needs_no_writable_code(words: list[str], tmp_path: Path) -> None:
    write(tmp_path / "j", [b"one"])
    with subprocess.Popen(
        [*COMMAND, *words, str(tmp_path / "j")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENV,
        preexec_fn=deny_write_execute,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline().endswith(b"one\n")
        write(tmp_path / "j", [b"two"])
        assert running.stdout.readline().endswith(b"two\n")
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == -signal.SIGTERM
        assert running.stderr.read() == b""


@pytest.mark.skipif(not has_mdwe(), reason="the kernel has no PR_SET_MDWE")
def test_a_hub_needs_no_writable_code(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "hub", "serve", "--address", "127.0.0.1:0", str(tmp_path / "hub")],
        stdout=subprocess.PIPE,
        env=ENV,
        preexec_fn=deny_write_execute,
    ) as serving:
        try:
            assert serving.stdout is not None
            address = serving.stdout.readline().decode().split()[-1]
            write(tmp_path / "flights", [b"x"] * 3)
            words = ["hub", "push", "--client", "EWR", str(tmp_path / "flights"), address]
            pushed = subprocess.run(
                [*COMMAND, *words], capture_output=True, env=ENV, preexec_fn=deny_write_execute, timeout=60, check=False
            )
            assert (pushed.returncode, pushed.stdout) == (0, b"3\n"), pushed.stderr
            serving.send_signal(signal.SIGTERM)
            assert serving.wait(20) == 0
        finally:
            serving.kill()  # if the push failed
