"""The subcommands of the hub, as programs of their own."""

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

import hub
import sej
from hub.cli import _read_place
from hub.naming import Source
from hub.tokens import hash_token
from hub.wire import Client, Server, Tokens
from tests.hub.support import fill, run, same_bytes, start
from tests.sej.hooks import until
from tests.sej.support import commit, sample, write


def way_out(error: str) -> str:
    """Return the command that an error names."""
    return str(re.findall("run `(.*?)`", error)[-1])


def test_a_list_of_tokens_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "the tokens"
    path.write_text(f"{hash_token('secret')} write EWR\n")
    path.chmod(0o664)
    refused = run("serve", "--address", "127.0.0.1:0", "--tokens", path, tmp_path / "hub")
    assert (refused.returncode, "may write this file (mode 664)" in refused.stderr) == (1, True)
    subprocess.run(way_out(refused.stderr), shell=True, check=True)
    assert Tokens(path).grant("secret", 0.0).clients == ("EWR",)  # others may read it: it has no secret


def test_serve_push_ls_clean(tmp_path: Path) -> None:
    token, line = run("token", "--write", "EWR", "--until", "2999-01-01T00:00:00Z").stdout.splitlines()
    assert line == f"{hash_token(token)}  write  EWR  2999-01-01T00:00:00Z"
    (tmp_path / "tokens").write_text(line + "\n")
    (tmp_path / "token").write_text(token + "\n")
    (tmp_path / "token").chmod(0o640)
    fill(tmp_path / "tree" / "s.1.000", sample(50), segment_bytes=300)
    with start("serve", "--address", "127.0.0.1:0", "--tokens", tmp_path / "tokens", tmp_path / "hub") as server:
        address = server.stdout.readline().decode().rsplit(" ", 1)[1].strip()
        push = ("push", "--client", "EWR", "--token-file", tmp_path / "token", tmp_path / "tree", address)
        unsafe = run(*push)
        assert (unsafe.returncode, "may read this token (mode 640)" in unsafe.stderr) == (2, True)
        subprocess.run(way_out(unsafe.stderr), shell=True, check=True)
        assert run(*push).stdout == "50\n"
        assert run(*push).stdout == "0\n"
        refused = run("push", "--client", "EWR", tmp_path / "tree", address)
        assert refused.returncode == 1
        assert "requires a token" in refused.stderr
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    same_bytes(tmp_path / "tree" / "s.1.000", tmp_path / "hub" / "EWR.s.1.000")
    commit(tmp_path / "hub" / "EWR.s.1.000", "report", 20)
    row = json.loads(run("ls", "--json", tmp_path / "hub").stdout)
    assert (row["client"], row["journal"], row["end_offset"], row["lag"]) == ("EWR", "s.1.000", 50, {"report": 30})
    assert run("ls", tmp_path / "hub").stdout.startswith("EWR.s.1.000  0..50  ")
    assert row["holders"] == {"report": None}
    assert run("clean", "--max-bytes", 1, "--dry-run", tmp_path / "hub").stdout == ""  # one segment, the last


@pytest.mark.parametrize(
    "words",
    [("token",), ("token", "--write", "a", "--read", "b"), ("serve", "--certificate", "x", "hub"),
     ("serve", "--client-ca", "x", "hub"), ("serve", "--max-streams", "0", "hub"),
     ("serve", "--answer-bytes", "1000", "{tmp}/hub"), ("push", "tree", "127.0.0.1:1"),
     ("token", "--write", "a b"), ("token", "--read", "a b"), ("token", "--write", "a", "--until", "tomorrow"),
     ("token", "--write", "a", "--until", "2020-01-01T00:00:00Z"),
     ("token", "--write", "a", "--until", "2027-01-01T00:00:00"), ("serve", "--metrics", "99999", "hub"),
     ("serve", "--address", "127.0.0.1:\N{SUPERSCRIPT TWO}", "hub"),
     ("push", "--client", "a", "tree", "localhost"), ("follow", "127.0.0.1:99999", "a", "j"),
     ("push", "--client", "a", "--key", "x", "tree", "127.0.0.1:1"),
     ("push", "--client", "a", "--certificate", "x", "tree", "127.0.0.1:1"),
     ("push", "--client", "a", "--ca", __file__, "tree", "127.0.0.1:1")],
)  # fmt: skip
def test_wrong_usage(words: tuple[str, ...], tmp_path: Path) -> None:
    assert run(*(word.replace("{tmp}", str(tmp_path)) for word in words)).returncode == 2


def test_another_hub_on_the_same_port_is_refused(tmp_path: Path) -> None:
    with hub.Store(tmp_path / "hub") as store, Server(store, "127.0.0.1:0") as server:
        done = run("serve", "--address", server.address, tmp_path / "other")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"cannot listen on {server.address}" in done.stderr


@pytest.mark.parametrize("words", [("merge",), ("clean", "--max-age", "1d")])
def test_a_directory_that_is_not_a_hub_is_left_as_it_is(words: tuple[str, ...], tmp_path: Path) -> None:
    refused = run(*words, tmp_path)
    assert refused.returncode == 4
    assert "not a hub's root" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_push_of_a_directory_without_a_journal_is_reported(tmp_path: Path) -> None:
    done = run("push", "--client", "a", tmp_path, "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (4, "")
    assert f"{tmp_path}: there is nothing to copy: this directory has no journal" in done.stderr


def test_follow_from_another_machine(tmp_path: Path) -> None:
    place = tmp_path / "place"
    fill(tmp_path / "source", sample(50), segment_bytes=300)
    with hub.Store(tmp_path / "hub") as store, Server(store, "127.0.0.1:0") as server:
        words = ("follow", server.address, "EWR", "flights")
        missing = run(*words)
        assert missing.returncode == 4
        assert "no journal 'flights' of client 'EWR'" in missing.stderr
        push = ("push", "--client", "EWR", "--journal", "flights", tmp_path / "source", server.address)
        assert run(*push).stdout == "50\n"
        rows = [json.loads(line) for line in run(*words, "--until-end", "--json").stdout.splitlines()]
        assert [row["offset"] for row in rows] == list(range(50))
        assert run(*words, "--until-end", "--start", 48, "--place", place).stdout.count("\n") == 2
        assert place.read_text() == "50\n"
        assert run(*words, "--until-end", "--place", place).stdout == ""
        middle = rows[40]["time"]
        since = [row["offset"] for row in rows if row["time"] >= middle]
        found = run(*words, "--until-end", "--start", middle, "--json").stdout.splitlines()
        assert [json.loads(line)["offset"] for line in found] == list(range(since[0], 50))
        with start(*words, "--place", place, "--raw") as follower:
            write(tmp_path / "source", [b"new\n"])
            assert run(*push).stdout == "1\n"
            assert follower.stdout.readline() == b"new\n"
            until(lambda: place.read_text() == "51\n")
            follower.terminate()
        assert run(*words, "--start", 3, "--place", place).returncode == 2


def test_a_directory_that_cannot_be_cleaned_is_named_once(tmp_path: Path) -> None:
    fill(tmp_path / "hub" / "EWR.flights", sample(20))
    (tmp_path / "hub" / "EWR.flights" / "ofs" / ".lock").mkdir()
    done = run("clean", "--max-bytes", 1, tmp_path / "hub")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"sej: \S+/EWR\.flights/ofs/\.lock: [^:]+\n", done.stderr), done.stderr


def test_follow_reports_that_the_hub_lost_messages(tmp_path: Path) -> None:
    fill(tmp_path / "hub" / "EWR.flights", sample(20))
    place = tmp_path / "place"
    place.write_text("30\n")
    with hub.Store(tmp_path / "hub") as store, Server(store, "127.0.0.1:0") as server:
        for more in ((), ("--until-end",)):
            done = run("follow", "--place", place, *more, server.address, "EWR", "flights")
            assert (done.returncode, done.stdout) == (1, "")
            assert "the next offset is 30, but EWR.flights ends at 20" in done.stderr
        assert run("follow", "--until-end", "--start", 30, server.address, "EWR", "flights").stdout == ""


@pytest.mark.parametrize("text", ["51x", "", "-1", str(2**64)])
def test_a_place_that_is_not_an_offset_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "place").write_text(text)
    with pytest.raises(sej.BadOffsetFileError, match="expected the next offset"):
        _read_place(tmp_path / "place")


def test_follow_with_a_reader_on_the_hub(tmp_path: Path) -> None:
    fill(tmp_path / "hub" / "EWR.flights", sample(20))
    token = run("token", "--reader", "EWR").stdout.splitlines()
    (tmp_path / "tokens").write_text(token[1] + "\n")
    (tmp_path / "token").write_text(token[0])
    (tmp_path / "token").chmod(0o400)
    with hub.Store(tmp_path / "hub") as store, Server(store, "127.0.0.1:0", tokens=tmp_path / "tokens") as server:
        words = ("follow", "--token-file", tmp_path / "token", "--reader", "report", server.address, "EWR", "flights")
        assert run(*words, "--until-end", "--start", 5).stdout.count("\n") == 15
        assert run(*words, "--until-end").stdout == ""
        assert run(*words, "--until-end", "--start", 5).returncode == 2
        assert run(*words, "--until-end", "--place", tmp_path / "place").returncode == 2
        assert "report 0 behind" in run("ls", tmp_path / "hub").stdout
        with start(*words, "--raw") as follower:
            until(lambda: server.service.readers.held > 0)
            held = run(*words, "--until-end")
            assert (held.returncode, f":{follower.pid}, whose lease ends in" in held.stderr) == (3, True)
            store.put("EWR", "flights", [sej.Message(20, 1, 0, b"", b"new\n")])
            assert follower.stdout.readline() == b"new\n"
            until(lambda: sej.read_offset(tmp_path / "hub" / "EWR.flights", "report") == 21)
            follower.terminate()


def test_follow_ends_with_1_if_another_program_takes_its_reader(tmp_path: Path) -> None:
    """3 means that another program had the reader at the start, so that nothing was printed twice."""
    fill(tmp_path / "hub" / "EWR.flights", sample(1))
    source = Source("EWR", "flights")
    with (
        hub.Store(tmp_path / "hub") as store,
        Server(store, "127.0.0.1:0") as server,
        start("follow", "--reader", "report", "--raw", server.address, *source) as follower,
    ):
        until(lambda: sej.read_offset(tmp_path / "hub" / "EWR.flights", "report") == 1)
        with server.service.readers._named("report") as name:  # as if the lease had ended
            name.held[source].holder = "another"
        store.put(*source, [sej.Message(1, 1, 0, b"", b"new\n")])
        error = follower.stderr.read().decode()
        assert (follower.wait(), "is not held by this program any more" in error) == (1, True)


def test_follow_waits_for_a_hub_that_is_out_of_reach(tmp_path: Path, port: int) -> None:
    address = f"127.0.0.1:{port}"
    fill(tmp_path / "source", sample(3))
    with hub.Store(tmp_path / "hub") as store:
        with Server(store, address):
            run("push", "--client", "EWR", "--journal", "flights", tmp_path / "source", address)
            follower = start("follow", "--json", "--start", "2", address, "EWR", "flights")
            follower.stdout.readline()
        with follower:
            assert b"trying again" in follower.stderr.readline()
            with Server(store, address), Client(address, client_id="EWR") as client:
                client.put("flights", [sej.Message(3, 1, 0, b"", b"again")])
                assert json.loads(follower.stdout.readline())["value"] == "again"
                follower.terminate()
