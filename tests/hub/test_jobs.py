"""Jobs through a hub: every row once, whatever is repeated, cut off or killed."""

import errno
import itertools
import os
import random
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import hub
import sej
from hub.jobs import Jobs, Staged, target_of
from hub.naming import find_sources
from hub.tokens import Grant, hash_token
from hub.wire import Client, Server, Tokens
from hub.wire.client import JobCalls
from sej.codec import encode
from sej.errors import InvalidNameError
from sej.system.checksum import crc32c
from sej.system.locks import Lock
from shard.committing import discard_dead_jobs
from shard.staging import StagedRowsError
from tests.hub.support import Killed, connected
from tests.sej.hooks import HookedDisk
from tests.sej.support import flip, read_all


def rows(values: list[bytes]) -> bytes:
    return b"".join(encode(offset, 1, 0, b"k", value) for offset, value in enumerate(values))


def values_of(shard: int, count: int = 20, tag: str = "v") -> list[bytes]:
    return [b"%s-%d-%d" % (tag.encode(), shard, number) for number in range(count)]


def staged(client: JobCalls | Jobs, job: str, shard: int, values: list[bytes], *, parts: int = 3) -> Staged:
    """Send one file in parts, as a task does, and seal it."""
    task, data, whose = uuid.uuid4().hex, rows(values), () if isinstance(client, JobCalls) else ("a",)
    cuts = [len(data) * at // parts for at in range(parts + 1)]
    for start, stop in itertools.pairwise(cuts):
        assert client.stage(*whose, job, task, shard, start, data[start:stop]) == stop  # type: ignore[call-arg]
    file = Staged(task, shard, len(values), len(data), crc32c(data))
    client.seal(*whose, job, [file])  # type: ignore[call-arg]
    return file


def contents(root: Path) -> dict[str, list[bytes]]:
    found = {}
    for source in find_sources(str(root)):
        found[source.name] = [message.value for message in read_all(root / source.name)]
    return found


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with hub.Store(tmp_path) as store:
        yield Jobs(store)


@contextmanager
def calling(root: Path) -> Iterator[JobCalls]:
    with connected(root, "a") as (_, client):
        yield JobCalls(client)


def litter(root: Path) -> list[str]:
    return [name for name in os.listdir(root / ".staging") if name.startswith(("task-", "job-"))]


def test_rows_of_a_job_are_appended_once(tmp_path: Path) -> None:
    with calling(tmp_path) as client:
        for number, name in ((0, "app"), (0, "app"), (1, "app"), (0, "other")):
            job = uuid.uuid4().hex
            files = [staged(client, job, shard, values_of(shard, tag=name)) for shard in (0, 1)]
            written = client.commit(job, "orders", 1, files, name=name, number=number)
            assert written is not client.commit(job, "orders", 1, files, name=name, number=number) or not written
        assert litter(tmp_path) == []
    found = contents(tmp_path)
    for shard in (0, 1):
        once, other = values_of(shard, tag="app"), values_of(shard, tag="other")
        assert found[f"a.orders.1.{shard:03x}"] == [*once, *once, *other]


def test_jobs_without_a_name_are_recognised_by_their_id(tmp_path: Path) -> None:
    with calling(tmp_path) as client:
        for job in ("01", "02"):
            files = [staged(client, job, 0, values_of(0))]
            assert client.commit(job, "log", 0, files)
            assert not client.commit(job, "log", 0, files)
    assert contents(tmp_path) == {"a.log": values_of(0) * 2}


def test_rows_of_several_tasks_follow_each_other(tmp_path: Path) -> None:
    with calling(tmp_path) as client:
        files = [staged(client, "01", 0, values_of(task)) for task in range(3)]
        assert client.commit("01", "log", 0, files)
        assert sej.Journal(tmp_path / "a.log").verify() == []
    assert contents(tmp_path) == {"a.log": values_of(0) + values_of(1) + values_of(2)}


def test_a_part_that_is_sent_again_is_not_written_again(tmp_path: Path) -> None:
    with calling(tmp_path) as client:
        data = rows(values_of(0))
        for start in (0, 0, 100, 50, 0):
            assert client.stage("01", "02", 0, start, data[start : start + 200]) == max(300, 0) or start in (0, 50)
        assert client.stage("01", "02", 0, 0, data) == len(data)
        file = Staged("02", 0, 20, len(data), crc32c(data))
        client.seal("01", [file])
        client.seal("01", [file])
        assert client.commit("01", "log", 0, [file])
    assert contents(tmp_path) == {"a.log": values_of(0)}


def test_a_hub_that_lost_bytes_makes_the_task_start_again(tmp_path: Path) -> None:
    with calling(tmp_path) as client:
        data = rows(values_of(0))
        client.stage("01", "02", 0, 0, data[:100])
        (path,) = (tmp_path / ".staging").glob("task-*/000.rows")
        path.write_bytes(data[:60])
        with pytest.raises(hub.GapError, match="the hub has 60 bytes of these rows, but these begin at byte 100"):
            client.stage("01", "02", 0, 100, data[100:])
        path.write_bytes(data[:60] + b"x" * 40)
        client.stage("01", "02", 0, 100, data[100:])
        file = Staged("02", 0, 20, len(data), crc32c(data))
        for attempt in (lambda: client.seal("01", [file]), lambda: client.commit("01", "log", 0, [file])):
            with pytest.raises(StagedRowsError, match="differ from what it reported: expected"):
                attempt()
    assert contents(tmp_path) == {}


def test_a_failed_sync_is_not_repeated_on_the_same_bytes(tmp_path: Path) -> None:
    def fail_once(verb: str, *_: object) -> None:
        if verb in ("sync", "sync_dir") and next(syncs) == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    for failing in range(3):  # the file, its folder, the folder above
        syncs = itertools.count()
        with hub.Store(tmp_path / str(failing)) as store:
            jobs = Jobs(store, HookedDisk(fail_once))
            data = rows([b"x"])
            file = Staged("02", 0, 1, len(data), crc32c(data))
            jobs.stage("a", "01", "02", 0, 0, data)
            with pytest.raises(OSError, match="Input/output error"):
                jobs.seal("a", "01", [file])
            with pytest.raises(StagedRowsError):
                jobs.seal("a", "01", [file])
            again = staged(jobs, "01", 0, [b"x"])
            assert jobs.commit("a", "01", "orders", 0, None, 0, [again])
        assert contents(tmp_path / str(failing)) == {"a.orders": [b"x"]}


def test_an_aborted_job_leaves_nothing(tmp_path: Path) -> None:
    with calling(tmp_path) as client:
        kept = staged(client, "02", 0, values_of(0))
        file = staged(client, "01", 0, values_of(1))
        client.abort("01")
        with pytest.raises(StagedRowsError, match="cannot see the rows of task"):
            client.commit("01", "log", 0, [file])
        with pytest.raises(StagedRowsError, match=r"this job was aborted.*run the job again"):
            client.stage("01", "ff", 0, 0, rows(values_of(1)))  # a task that outlived its job
        assert client.commit("02", "log", 0, [kept])
        client.abort("02")
    assert not list((tmp_path / ".staging").glob("task-*"))
    assert contents(tmp_path) == {"a.log": values_of(0)}


def test_an_abort_waits_for_a_commit_that_is_running(tmp_path: Path) -> None:
    """Its caller may have given up: a decision must not name files that are being removed."""
    with hub.Store(tmp_path) as store, ThreadPoolExecutor(1) as pool:
        jobs = Jobs(store)
        staged(jobs, "01", 0, values_of(0))
        with Lock(tmp_path / ".staging" / "commit.lck").acquire():
            aborted = pool.submit(jobs.abort, "a", "01")
            jobs.abort("a", "02")  # what has no files does not wait
            assert not aborted.done() and len(litter(tmp_path)) == 1
        aborted.result()
        assert litter(tmp_path) == []


def test_jobs_need_a_role_of_their_own_and_see_only_their_client(tmp_path: Path) -> None:
    grants = [Grant(hash_token(role), role, ("a",)) for role in ("append", "write", "read")]
    with hub.Store(tmp_path) as store, Server(store, "127.0.0.1:0", tokens=Tokens(grants)) as server:
        for token in ("write", "read"):
            with Client(server.address, client_id="a", token=token) as connection:
                client = JobCalls(connection)
                with pytest.raises(hub.AccessError, match="does not let you append for 'a'"):
                    client.stage("01", "02", 0, 0, rows(values_of(0)))
                with pytest.raises(hub.AccessError, match="append"):
                    client.abort("01")
        with Client(server.address, client_id="a", token="append") as connection:
            client = JobCalls(connection)
            file = staged(client, "01", 0, values_of(0))
            with pytest.raises(hub.AccessError, match="let you write"):
                connection.put("log", [sej.Message(0, 1, 0, b"", b"v")])
            with (
                Client(server.address, client_id="b", token="append") as other,
                pytest.raises(hub.AccessError, match="'b'"),
            ):
                JobCalls(other).commit("01", "log", 0, [file])
            assert client.commit("01", "log", 0, [file])


@pytest.mark.parametrize("name", ["", "..", "/x", "A", "a" * 65])
def test_ids_cannot_leave_the_staging_folder(tmp_path: Path, name: str) -> None:
    with calling(tmp_path) as client:
        for job, task in ((name, "01"), ("01", name)):
            with pytest.raises(InvalidNameError, match="hexadecimal"):
                client.stage(job, task, 0, 0, b"x")


def test_staged_rows_count_until_they_are_committed_or_removed(tmp_path: Path) -> None:
    data = rows(values_of(0))
    with hub.Store(tmp_path, max_client_bytes=2 * len(data)) as store:
        jobs = Jobs(store)
        first = staged(jobs, "01", 0, values_of(0))
        staged(jobs, "02", 0, values_of(0))
        for job, task in (("02", "0a"), ("03", "0b")):
            with pytest.raises(hub.QuotaError, match=f"{2 * len(data)} of {2 * len(data)} bytes used"):
                jobs.stage("a", job, task, 0, 0, data)
        jobs.stage("b", "01", "02", 0, 0, data)  # another client has its own
        jobs.abort("a", "02")
        assert jobs.commit("a", "01", "log", 0, None, 0, [first])
        staged(jobs, "03", 0, values_of(0))
        with pytest.raises(hub.QuotaError):
            jobs.stage("a", "03", "0c", 0, 0, data)


def test_a_job_that_was_decided_is_finished_when_the_hub_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub.Store(tmp_path) as store:
        jobs = Jobs(store)
        files = [staged(jobs, "01", shard, values_of(shard)) for shard in (0, 1)]
        monkeypatch.setattr("shard.committing._apply", lambda *_: None)
        jobs.commit("a", "01", "orders", 1, "app", 7, files)
        monkeypatch.undo()
        assert store.sources() == []
    with hub.Store(tmp_path) as store:
        again = Jobs(store)
        assert len(store.sources()) == 2
        assert not again.commit("a", "01", "orders", 1, "app", 7, files)
    assert contents(tmp_path) == {f"a.orders.1.{shard:03x}": values_of(shard) for shard in (0, 1)}
    assert litter(tmp_path) == []


def test_a_decided_job_whose_rows_were_lost_does_not_keep_the_hub_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with hub.Store(tmp_path) as store:
        jobs = Jobs(store)
        files = [staged(jobs, "01", 0, values_of(0))]
        monkeypatch.setattr("shard.committing._apply", lambda *_: None)
        jobs.commit("a", "01", "log", 0, "app", 7, files)
        monkeypatch.undo()
        (path,) = (tmp_path / ".staging").glob("task-*/000.rows")
        path.unlink()
        again = Jobs(store)
        assert "a job is not finished" in caplog.text
        files = [staged(again, "02", 0, values_of(0))]
        with pytest.raises(StagedRowsError, match=f"sej spark finish --discard {tmp_path}"):
            again.commit("a", "02", "log", 0, "app", 7, files)
        assert [job.lost for job in discard_dead_jobs(target_of(store))] == [20]
        assert again.commit("a", "02", "log", 0, "app", 7, files)


def test_the_name_that_counts_jobs_without_a_name_is_refused(tmp_path: Path, jobs: Jobs) -> None:
    """Their numbers are times: each number of a caller would be below them, and its job dropped."""
    with pytest.raises(InvalidNameError, match="must not be 'spark-batch'"):
        jobs.commit("a", "01", "log", 0, "spark-batch", 1, [staged(jobs, "01", 0, [b"x"])])


# --- what a client sends wrong, and what is wrong with its journals: other clients do not notice


def test_rows_that_are_no_messages_are_refused_before_the_decision(tmp_path: Path, jobs: Jobs) -> None:
    whole = rows([b"a", b"b"])
    for data, count in ((b"nothing" * 30, 2), (whole, 3), (whole, 1), (whole[:-1], 2), (whole + b"x" * 40, 2)):
        task = uuid.uuid4().hex
        jobs.stage("a", "01", task, 0, 0, data)
        file = Staged(task, 0, count, len(data), crc32c(data))
        for attempt in (
            lambda f: jobs.seal("a", "01", [f]),
            lambda f: jobs.commit("a", "01", "log", 0, None, 0, [f]),
        ):
            with pytest.raises(StagedRowsError, match=f"differ from what it reported: expected {count} messages"):
                attempt(file)
    assert not any(name.startswith("job-") for name in litter(tmp_path))
    assert jobs.commit("a", "02", "log", 0, None, 0, [staged(jobs, "02", 0, [b"x"])])
    assert contents(tmp_path) == {"a.log": [b"x"]}


def test_a_shard_that_is_none_of_the_journal_is_refused_before_the_decision(tmp_path: Path) -> None:
    with calling(tmp_path) as client:
        file = staged(client, "01", 2, [b"x"])
        for bits, error in ((0, "index must be 0 to 0"), (1, "index must be 0 to 1"), (2**31, "bits must be")):
            with pytest.raises(sej.InvalidMessageError, match=error):
                client.commit("01", "log", bits, [file])
        assert client.commit("01", "log", 2, [file])
    assert contents(tmp_path) == {"a.log.2.002": [b"x"]}


def damage(journal: Path) -> None:
    """Change the offset of the first message, which the index does not cover."""
    for file in (journal / "idx").iterdir():
        file.unlink()
    (segment,) = (journal / "jnl").iterdir()
    flip(segment, 7, 0xFF)


def test_a_job_is_not_decided_if_a_journal_cannot_be_opened(tmp_path: Path, jobs: Jobs) -> None:
    for name in ("a.log.1.000", "a.log.1.001"):
        with sej.Writer(tmp_path / name) as writer:
            writer.append_many([b"1", b"2"])
    damage(tmp_path / "a.log.1.001")
    files = [staged(jobs, "01", shard, [b"x"]) for shard in (0, 1)]
    with pytest.raises(sej.CorruptionError, match=r"a\.log\.1\.001"):
        jobs.commit("a", "01", "log", 1, None, 0, files)
    sej.Journal(tmp_path / "a.log.1.001").repair()
    assert jobs.commit("a", "01", "log", 1, None, 0, files)
    assert contents(tmp_path)["a.log.1.000"] == [b"1", b"2", b"x"]


def test_a_decided_job_that_cannot_be_finished_stops_its_own_client_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with hub.Store(tmp_path) as store:
        jobs = Jobs(store)
        store.put("a", "log", [sej.Message(offset, 1, 0, b"", b"v") for offset in range(2)])
        files = {client: rows_of(jobs, client, [client.encode()]) for client in ("a", "a-b", "b")}
        with monkeypatch.context() as patched:
            patched.setattr("shard.committing._apply", lambda *_: None)
            patched.setattr("shard.committing._finish_dead_jobs", lambda *_: None)
            for client in ("a", "b"):
                jobs.commit(client, "01", "log", 0, "app", 1, [files[client]])
    damage(tmp_path / "a.log")
    with hub.Store(tmp_path) as store:
        jobs = Jobs(store)
        assert "a job is not finished: a.01" in caplog.text
        assert not jobs.commit("b", "01", "log", 0, "app", 1, [files["b"]])
        assert jobs.commit("a-b", "01", "log", 0, "app", 1, [files["a-b"]])
        with pytest.raises(sej.CorruptionError, match=r"a\.log"):
            jobs.commit("a", "02", "log", 0, "app", 2, [rows_of(jobs, "a", [b"y"], "02")])
        sej.Journal(tmp_path / "a.log").repair()
        assert jobs.commit("a", "02", "log", 0, "app", 2, [rows_of(jobs, "a", [b"z"], "02")])
    found = contents(tmp_path)
    assert (found["b.log"], found["a-b.log"], found["a.log"][-2:]) == ([b"b"], [b"a-b"], [b"a", b"z"])


def rows_of(jobs: Jobs, client: str, values: list[bytes], job: str = "01") -> Staged:
    """Stage a file of a client."""
    data, task = rows(values), uuid.uuid4().hex
    jobs.stage(client, job, task, 0, 0, data)
    return Staged(task, 0, len(values), len(data), crc32c(data))


# --- SIGKILL


def run_job(client: JobCalls, server: Killed, number: int, dice: random.Random) -> None:
    """Run a job until it is committed, as Spark does: a failed task or commit begins again, with the same number."""

    def maybe_kill() -> None:
        if dice.random() < 0.25:
            server.restart()

    while True:
        job = uuid.UUID(int=dice.getrandbits(128)).hex
        try:
            files = []
            for shard in (0, 1):
                data, task = rows(values_of(shard, tag=f"n{number}")), uuid.UUID(int=dice.getrandbits(128)).hex
                for start in range(0, len(data), 300):
                    maybe_kill()
                    assert client.stage(job, task, shard, start, data[start : start + 300]) >= start
                files.append(Staged(task, shard, 20, len(data), crc32c(data)))
                client.seal(job, files[-1:])
            maybe_kill()
            client.commit(job, "orders", 1, files, name="app", number=number)
            maybe_kill()
            if dice.random() < 0.3:
                continue  # the driver dies before it notes the commit, and runs the job again
        except (hub.UnavailableError, hub.GapError):
            continue
        return


@pytest.mark.long
@pytest.mark.torture
def test_every_row_once_though_the_hub_is_killed(tmp_path: Path, port: int, torture_s: float) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    dice = random.Random(seed)
    address = f"127.0.0.1:{port}"
    server = Killed("--address", address, tmp_path)
    count = max(3, int(torture_s))
    try:
        with Client(address, client_id="a") as client:
            for number in range(count):
                run_job(JobCalls(client), server, number, dice)
    finally:
        server.kill()
    for shard in (0, 1):
        wanted = [value for number in range(count) for value in values_of(shard, tag=f"n{number}")]
        assert contents(tmp_path)[f"a.orders.1.{shard:03x}"] == wanted, f"seed {seed}"
