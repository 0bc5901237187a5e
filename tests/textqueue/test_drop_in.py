"""Scripts that were written against the published textqueue 1.1 run unchanged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import textqueue
from tests.house.house import ROOT
from tests.textqueue.claiming import ENV

# The example in the README of the published package.
EXAMPLE = r"""-A queued message begins with a '-' dash control character
=A processed message begins with an '=' equals sign control character
!A message that encountered a critical error begins with an `!` exclamation mark control character
-Any message can have multiple lines
 where each sequential line begins with a ' ' space
=Any message can have multiple lines
 where each sequential line begins with a ' ' space
!Any message can have multiple lines
 where each sequential line begins with a ' ' space
# A comment begins with a '#' sign
# Multiline comments are possible using a space as the starting character on
  each sequential line.
# Messages are space sensitive, so the following message will read "  I have space padding  "
-  I have space padding  

-Blank lines are ingored
=Processed messages can apear after queued messages
-Message Variables
\Message variables are attached after a message
\A message can have any number of variables
\Message variables are fixed length and editable
\Additional space can be reserved for the message variable with trailing spaces   
\A single message variable cannot span multiple lines
# Comment Variables
\Comments can also have message variables
"""  # noqa: W291

SCRIPT = """
import sys
from textqueue import MessageStatus, QueueItem, TextQueue

queue = TextQueue()
queue.add_input(sys.argv[1])
queue.add_input(sys.argv[2])
while True:
    item = queue.get_next()
    if item is None:
        break
    assert isinstance(item, QueueItem)
    assert item.status == MessageStatus.queued
    print(item.source_filename == sys.argv[1], item.control_offset, repr(item.value), item.get_variables())
    if item.get_variables():
        item.set_variable(0, "seen")
        item.mark_as_critical_error()
    else:
        item.mark_as_cleared()
queue.close()
"""


@pytest.fixture
def example(tmp_path: Path) -> Path:
    path = tmp_path / "example.tq"
    path.write_text(EXAMPLE, "utf-8")
    return path


def test_the_example_of_the_readme_reads_as_described(example: Path) -> None:
    q = textqueue.TextQueue()
    q.add_input(str(example))
    found = []
    while (item := q.get_next()) is not None:
        found.append((item.value, len(item.get_variables())))
    assert found == [
        ("A queued message begins with a '-' dash control character", 0),
        ("Any message can have multiple lines\nwhere each sequential line begins with a ' ' space", 0),
        ("  I have space padding  ", 0),
        ("Blank lines are ingored", 0),
        ("Message Variables", 5),
    ]
    q.close()


def test_a_script_runs_unchanged(example: Path, tmp_path: Path) -> None:
    second = tmp_path / "second.tq"
    second.write_text("-one\n-two\n\\12345\n")
    run = [sys.executable, "-c", SCRIPT, str(example), str(second)]
    lines = subprocess.run(run, env=ENV, check=True, capture_output=True, text=True).stdout.splitlines()
    assert len(lines) == 7
    assert lines[0].startswith("True 0 ")
    assert lines[-1] == "False 5 'two' ('12345',)"
    assert second.read_text() == "=one\n!two\n\\seen \n"
    assert subprocess.run(run, env=ENV, check=True, capture_output=True, text=True).stdout == ""


def test_get_next_in_file_with_its_flags(example: Path) -> None:
    q = textqueue.TextQueue()
    q.add_input(str(example))
    statuses = []
    while True:
        item = q.get_next_in_file(
            0, include_cleared_items=True, include_comment_items=True, include_critical_items=True
        )
        if item is None:
            break
        statuses.append(item.status.name)
    assert len(statuses) == 14
    assert q.get_next_in_file(0) is not None
    assert q.get_next() is not None
    assert q.input_files == [str(example)]


def test_errors_are_also_those_of_the_published_package(example: Path) -> None:
    q = textqueue.TextQueue()
    q.add_input(example)
    *_, item = list(q.messages())
    with pytest.raises(ValueError, match="must be at most"):
        item.set_variable(0, "x" * 100)
    with pytest.raises(IndexError, match="the message has 5 variables, so variable 9 does not exist"):
        item.set_variable(9, "x")
    with pytest.raises(KeyError, match="no variable 'color'"):
        item["color"]


def test_importing_warns_if_the_published_package_is_installed_too(tmp_path: Path) -> None:
    (tmp_path / "textqueue-1.1.dist-info").mkdir()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    run = [sys.executable, "-W", "always", "-c", "import textqueue"]
    said = subprocess.run(run, env=env, check=True, capture_output=True, text=True).stderr
    assert "textqueue-1.1 is installed" in said
    assert subprocess.run(run, env=ENV, check=True, capture_output=True, text=True).stderr == ""


def test_names_that_scripts_import() -> None:
    from textqueue import main

    assert textqueue.QueueItem is textqueue.Message
    assert [getattr(textqueue, name) for name in main.__all__] == [getattr(main, name) for name in main.__all__]


def test_the_text_of_a_message_cannot_be_assigned(tmp_path: Path) -> None:
    with textqueue.TextQueue(tmp_path / "jobs.tq") as queue:
        message = queue.append("one")
        with pytest.raises(AttributeError, match="append another"):
            setattr(message, "value", "two")  # noqa: B010
        assert message.value == "one"
