"""The driver and the executors need one disk: what happens if they have several, and if staged rows are lost."""

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

import pipeline
import sej
import shard as sharded
from pipeline.cli import app
from pipeline.formats import KestrelSource, TextQueueSource
from pipeline.health import look
from pipeline.jobs import _Origin as Origin
from pipeline.options import READ, STREAM, WRITE, OptionError, parse
from pipeline.paths import local_path
from pipeline.reading.stream import SejReader, SejStreamReader
from pipeline.writing.places import Target
from pipeline.writing.sink import batch_sink
from sej.system.locks import Lock, host_name, process_host
from sej.system.sealed import unseal
from shard.committing import ANONYMOUS, Job, _decision, commit, finish_dead_jobs
from shard.staging import Owner, Rows, Stage, StagedRowsError, identity
from tests.house.house import ROOT, run
from tests.pipeline.conftest import fill
from tests.pipeline.test_losses import SCHEMA as ALL_COLUMNS
from tests.sej.support import overwrite, read_all

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Processes die here, not machines: no disk has to be waited for."""
SCHEMA = StructType([StructField("value", BinaryType())])
OPTIONS = {"prefix": "orders", "bits": "1"}
LOST = "the driver cannot see the rows of task 1 on host far: executors need the same disk, or use a hub"
DIFFER = "task 1 on host far differ from what it reported: expected"


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target.of(str(tmp_path / "root"), parse(WRITE, OPTIONS))


def rows(target: Target, job: str, count: int = 10) -> list[Rows]:
    """The rows of two tasks on two hosts, one shard each."""
    found = []
    for shard, host in enumerate(("near", "far")):
        stage = Stage(target.staging, job, Owner.here(), f"{shard} on host {host}")
        stage.append(shard, [b"%s-%d" % (job.encode(), number) for number in range(count)], [b""] * count, 0, 1)
        found += stage.finish()
    return found


def lose(staged: Rows) -> None:
    shutil.rmtree(Path(staged.path).parent)


def shorten(staged: Rows) -> None:
    os.truncate(staged.path, staged.size - 1)


def damage(staged: Rows) -> None:
    overwrite(Path(staged.path), -1, b"\xff")


HARM = [(lose, LOST), (shorten, DIFFER), (damage, DIFFER)]


def decide(target: Target, job: Job) -> None:
    _decision(target, job.id).store({"prefix": target.prefix, "bits": target.bits, **job._asdict()})


def decisions(target: Target) -> list[str]:
    return [name for name in os.listdir(target.staging) if name.startswith("job-")]


@pytest.mark.parametrize(("harm", "says"), HARM)
def test_a_job_whose_rows_were_lost_or_damaged_is_not_decided(
    target: Target, harm: Callable[[Rows], None], says: str
) -> None:
    staged = rows(target, "first")
    harm(staged[1])
    with pytest.raises(StagedRowsError, match=says):
        commit(target, Job("first", "app", 0, staged))
    assert target.existing() == []
    assert decisions(target) == []
    assert commit(target, Job("second", "app", 0, rows(target, "second")))
    assert pipeline.count(target.root) == 20


def test_the_next_job_finishes_a_dead_one_of_another_sharded_journal(target: Target) -> None:
    decide(target, Job("dead", "app", 0, rows(target, "dead")))
    other = Target.of(target.root, parse(WRITE, {"prefix": "another", "bits": "2"}))
    assert commit(other, Job("next", "other", 0, rows(other, "next", 5)))
    assert [len(read_all(target.directory(shard).path)) for shard in range(2)] == [10, 10]
    assert pipeline.count(target.root) == 30
    assert decisions(target) == []


@pytest.mark.parametrize("other", ["nothing", "its own"])
def test_a_task_without_the_drivers_disk_fails_and_leaves_nothing(tmp_path: Path, other: str) -> None:
    root = tmp_path / "root"
    writer = batch_sink(str(root), parse(WRITE, OPTIONS), SCHEMA, False)
    shutil.move(root, tmp_path / "the driver's disk")
    staging = root / ".staging"
    if other == "its own":
        identity(str(staging), create=True)
        gone = Owner(process_host(), 2**22 + 1, 1)
        Stage(str(staging), "leaked", gone).append(0, [b"v"], [b""], 0, 1)
    batch = pa.record_batch([pa.array([b"v"], pa.binary())], names=["value"])
    with pytest.raises(StagedRowsError, match=r"cannot see the driver's disk: executors need the same disk, or use a"):
        writer.write(iter([batch]))
    assert not [name for name in (os.listdir(staging) if staging.exists() else ()) if name.startswith("task-")]


@pytest.mark.parametrize(("harm", "says"), HARM)
def test_a_decided_job_whose_rows_were_lost_or_damaged_is_reported_and_can_be_discarded(
    target: Target, harm: Callable[[Rows], None], says: str
) -> None:
    staged = rows(target, "first")
    decide(target, Job("first", "app", 7, staged))
    with target.open(0) as writer:  # its driver died between the two shards
        writer.end.append_once_encoded("app", 7, [Path(staged[0].path).read_bytes()])
    harm(staged[1])
    healthy = rows(target, "healthy")
    decide(target, Job("healthy", "other", 1, healthy))
    found = [row for row in look(target.root) if row[1] == "problem"]
    assert [says in row[2] and staged[1].path in row[2] for row in found] == [True], found
    assert found[0][3].startswith(f"`sej spark finish --discard {target.root}`")
    with pytest.raises(StagedRowsError, match=rf"{says}.*\. Remove it with `sej spark finish --discard "):
        finish_dead_jobs(target)
    with pytest.raises(StagedRowsError, match="job first of 'app' is decided but cannot be finished"):
        commit(target, Job("next", "third", 0, rows(target, "next")))
    done = CliRunner().invoke(app, ["finish", "--discard", target.root])
    assert done.exit_code == 0, done.output
    assert (
        "discarded job first: 10 of its messages are in the journals, 10 are lost unless it is run again" in done.output
    )
    assert [row for row in look(target.root) if row[1] != "ok"] == []
    assert pipeline.count(target.root) == 30
    assert commit(target, Job("again", "app", 7, rows(target, "again")))  # the same rows: the first shard has them
    assert pipeline.count(target.root) == 40


def test_a_decision_that_cannot_be_read_is_reported_and_can_be_discarded(target: Target) -> None:
    decide(target, Job("first", "app", 7, rows(target, "first")))
    Path(_decision(target, "first").path).write_bytes(b"{")
    assert [row[1] for row in look(target.root)] == ["problem"]
    with pytest.raises(sej.CorruptionError):
        finish_dead_jobs(target)
    done = CliRunner().invoke(app, ["finish", "--discard", target.root])
    assert done.exit_code == 0, done.output
    assert commit(target, Job("next", "app", 7, rows(target, "next")))


@pytest.mark.parametrize("mode", ["append", pytest.param("overwrite", marks=pytest.mark.long), "text"])
def test_every_row_once_wherever_the_commit_dies(mode: str) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        done = run([sys.executable, ROOT / "tests" / "pipeline" / "crashing.py", folder, mode], ROOT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > (15 if mode == "text" else 50)  # changes on the disk, each died before and inside


# --- reading


def batch_reader(root: Path) -> SejReader:
    return SejReader([str(root)], parse(READ, {}), ALL_COLUMNS)


def stream_reader(root: Path) -> SejStreamReader:
    return SejStreamReader([str(root)], parse(STREAM, {}), ALL_COLUMNS)


def plan(reader: SejReader | SejStreamReader) -> InputPartition:
    if isinstance(reader, SejReader):
        (part,) = reader.partitions()
    else:
        start = reader.initialOffset()
        start["journal"]["offset"] = 0
        (part,) = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    return part


@pytest.mark.parametrize("make", [batch_reader, stream_reader])
def test_an_executor_without_the_drivers_journal_says_so(
    journal: Path, make: Callable[[Path], SejReader | SejStreamReader]
) -> None:
    reader = make(journal)
    part = plan(reader)
    shutil.rmtree(journal)
    with pytest.raises(
        sej.JournalNotFoundError, match=f"{journal}: host {host_name()} cannot see this path.*the option hub"
    ):
        list(reader.read(part))
    fill(journal, 100, tag="other")  # the executor's own journal
    with pytest.raises(sej.TruncatedError, match=f"{journal}, offset 0: host {host_name()} has another journal at"):
        list(reader.read(part))


def test_a_journal_without_an_identity_is_read(journal: Path) -> None:
    (journal / "id").unlink()
    for _ in range(2):
        reader = batch_reader(journal)
        assert sum(batch.num_rows for batch in reader.read(plan(reader))) == 100
        (journal / "id").write_bytes(b"damaged")


# --- paths


@pytest.mark.parametrize("given", ["s3a://b/x", "hdfs://host:8020/x", "hdfs:/x", "file://host/x"])
def test_a_path_that_is_on_no_local_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (
        lambda: Target.of(given, parse(WRITE, OPTIONS)),
        lambda: pipeline.count(given),
        lambda: local_path(given),
    ):
        with pytest.raises(OptionError, match="local"):
            use()
    assert os.listdir(tmp_path) == []


def test_a_job_that_names_the_addresses_of_a_hub_in_another_order_is_the_same_job() -> None:
    """Otherwise `compact` and `dedupe` would not replace what they wrote."""
    first, second = (Origin("berlin", hub, None, None) for hub in ("a:1,b:2", ["b:2", "a:1"]))
    assert first.described == second.described != Origin("tokyo", "a:1,b:2", None, None).described


def test_a_directory_of_queues_that_the_driver_does_not_have_is_an_error(tmp_path: Path) -> None:
    source = KestrelSource({"path": str(tmp_path / "none"), "queue": "cars"})
    with pytest.raises(sej.JournalNotFoundError, match="none: this directory does not exist"):
        source.reader(StructType([StructField("data", BinaryType())]))


def test_a_text_queue_that_an_executor_does_not_have_is_an_error_and_is_not_created(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    path.write_text("-a\n")
    source = TextQueueSource({"path": str(path)})
    reader = source.reader(StructType([StructField("value", StringType())]))
    (part,) = reader.partitions()
    path.unlink()
    with pytest.raises(sej.SejError, match=f"host {host_name()} cannot see this path.*executors need the same disk"):
        list(reader.read(part))
    assert os.listdir(tmp_path) == []


def test_a_sink_makes_no_second_sharded_journal_of_a_prefix(tmp_path: Path) -> None:
    with sharded.Writer(sharded.Path(tmp_path, "orders", 3)) as writer:
        writer.append(b"v", b"k")
    Target.of(str(tmp_path), parse(WRITE, {"prefix": "orders", "bits": "3"}))
    with pytest.raises(sharded.RouteError, match="bits must be 3, as in the sharded journal"):
        Target.of(str(tmp_path), parse(WRITE, {"prefix": "orders", "bits": "2"}))


# --- what killed jobs leave

GONE = Owner(Owner.here().host, 2**22 + 1, 1)


def staged(target: Target, job: str, owner: Owner, shard: int = 0) -> Stage:
    stage = Stage(target.staging, job, owner)
    stage.append(shard, [b"%s-%d" % (job.encode(), shard)], [b""], 0, 1)
    return stage


def left(target: Target) -> set[str]:
    names = [name for name in os.listdir(target.staging) if name.startswith(("task-", "job-"))]
    return {name.removesuffix(".json").split("-")[1] for name in names}


@pytest.fixture(params=["tree", "journal"])
def littered(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    """A sink's target with a message in it; what a dead, a decided and a running job left."""
    options = {"bits": "1"} if request.param == "tree" else {}
    target = Target.of(str(tmp_path / "root"), parse(WRITE, options))
    with target.open(0) as writer:
        writer.append(b"first")
    staged(target, "dead", GONE).finish()
    staged(target, "running", Owner.here()._replace(pid=os.getpid(), start=None)).finish()
    job = Job("decided", ANONYMOUS, 2**62, staged(target, "decided", GONE).finish())
    _decision(target, "decided").store({"prefix": None, "bits": target.bits, **job._asdict()})
    return target


def test_the_doctor_removes_files_that_no_job_needs(littered: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Owner, "is_gone", lambda owner, _: owner == GONE)
    places = [littered.root, littered.directory(0).path]
    first, second = look(places[0])
    assert "not finished: decided" in first[2]
    assert first[3].endswith(f"or `sej spark finish {littered.root}`")
    assert second[2] == f"removed 1 folder(s) of dead jobs from {littered.staging}"
    assert left(littered) == {"running", "decided"}
    assert [row[1] for row in look(places[1])] == ["note"]
    with Lock(os.path.join(littered.staging, "commit.lck")).acquire():
        assert [row[2] for row in look(places[0])] == [f"a job is committing to {littered.root}"]


def test_the_program_does_so(littered: Target) -> None:
    done = run([sys.executable, "-m", "sej", "doctor", littered.root], ROOT)
    assert done.returncode == 0, done.stderr
    assert "folder(s) of dead jobs from" in done.stdout
    assert "dead" not in left(littered)


def test_a_command_finishes_what_was_decided(littered: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Owner, "is_gone", lambda owner, _: owner == GONE)
    _, _, _, do = next(look(littered.root))
    assert shlex.split(do.split("`")[1]) == ["sej", "spark", "finish", littered.root]
    done = CliRunner().invoke(app, shlex.split(do.split("`")[1])[2:])
    assert done.exit_code == 0, done.output
    assert left(littered) == {"running"}
    with sej.Scanner(littered.directory(0).path) as scanner:
        assert [message.value for message in scanner] == [b"first", b"decided-0"]
    assert unseal("done.json", Path(littered.staging, "done.json").read_bytes())


def test_the_doctor_reports_nothing_if_no_job_wrote(tmp_path: Path) -> None:
    sej.Writer(tmp_path / "j").close()
    assert list(look(tmp_path / "j")) == []
    assert list(look(tmp_path)) == []
