"""The cold tier: every message once, wherever it is and whenever a run dies; an object that is wrong is an error."""

import contextlib
import gc
import gzip
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sej
from sej.reading.archiving import archive, objects, problems, restore
from sej.system.disk import OS
from tests.cli.inside import inside
from tests.crash.disk import CrashDisk, FaultyDisk
from tests.sej.support import overwrite

COUNT = 40
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def fill(path: Any, count: int = COUNT, disk: Any = OS) -> None:
    with sej.Writer(path, segment_bytes=300, disk=disk) as writer:
        for _ in range(count):
            number = writer.offset
            writer.append(b"value %d" % number, b"key", timestamp=number * 1000)


def offsets(path: Any, offset: Any = sej.FIRST, disk: Any = OS, **how: Any) -> list[int]:
    with sej.Scanner(path, offset, disk=disk, **how) as scanner:
        found = list(scanner)
    assert all(message.value == b"value %d" % message.offset for message in found)
    return [message.offset for message in found]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    fill(tmp_path / "orders")
    return tmp_path / "orders"


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket of a server that speaks S3."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        host, port = server.get_host_and_port()
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ALLOW_HTTP", "true")
        for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
            patch.setenv(f"AWS_{name}", "test")
        patch.setenv("AWS_REGION", "us-east-1")
        import boto3

        boto3.client("s3", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket="cold")
        yield "s3://cold/journals"
    server.stop()


@pytest.fixture(params=["directory", "store"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.getfixturevalue("bucket") if request.param == "store" else tmp_path / "tier")


@pytest.fixture(params=[False, True], ids=["plain", "gzip"])
def compress(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_a_reader_does_not_see_the_border(journal: Path, tier: str, compress: bool) -> None:
    with sej.Scanner(journal, timeout=0.0) as begun, sej.Offset(journal, "slow") as slow:
        first = [message.offset for message in begun.read(3)]
        slow.commit(20)
        moved = archive(journal, tier, compress=compress)
        there = sej.Journal(journal).segments
        assert moved.messages == there[-1].first_offset and there[0].first_offset <= 20
        slow.commit(30)
        assert archive(journal, None, compress=not compress)[:2] == (0, 0)
        assert sej.Journal(journal).segments[0].first_offset > there[0].first_offset
        assert first + [message.offset for message in begun] == list(range(COUNT))
    fill(journal, 3)
    every = list(range(COUNT + 3))
    assert offsets(journal) == every and offsets(journal, verify=True, on_corruption="skip") == every
    for start in (0, 7, 8, 29, COUNT):
        assert offsets(journal, start) == every[start:]
    found = sej.Journal(journal)
    assert found.first_offset == 0 and found.verify() == []
    assert [message.offset for message in found.reversed()] == every[::-1]
    assert [found.find_time(number * 1000) for number in every] == every
    with sej.Offset(journal, "slow") as reader:
        reader.reset(2)
    handled: list[int] = []
    sej.Consumer(journal, "slow", timeout=0.0).run(lambda message: handled.append(message.offset))
    assert handled == every[2:]


def test_retention_waits_for_the_tier_and_never_removes_what_is_not_in_it(journal: Path, tmp_path: Path) -> None:
    archive(journal, tmp_path / "tier")
    fill(journal, COUNT)
    assert sej.Journal(journal).clean(max_bytes=0) == [] or offsets(journal) == list(range(2 * COUNT))
    archive(journal, None, keep_bytes=1 << 20)
    assert len(sej.Journal(journal).segments) > 2 and len(sej.Journal(journal).clean(max_bytes=0)) > 2
    assert offsets(journal) == list(range(2 * COUNT))


def test_messages_that_retention_removed_in_spite_of_the_tier_are_a_gap(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(journal, tmp_path / "tier")
    first = sej.Journal(journal).segments[0].first_offset
    fill(journal, COUNT)
    assert sej.Journal(journal).clean(max_bytes=0, ignore_readers=["cold-tier"])
    begin = sej.Journal(journal).segments[0].first_offset
    with sej.Scanner(journal) as scanner, pytest.raises(sej.OffsetGapError, match="archive move --accept-gaps"):
        list(scanner)
    refused = inside(monkeypatch, "archive", journal)
    assert refused.code == 4 and f"messages {first} to {begin - 1} were deleted" in refused.err
    assert inside(monkeypatch, "archive", "--accept-gaps", journal).code == 0
    assert offsets(journal) == [*range(first), *range(begin, 2 * COUNT)]
    assert inside(monkeypatch, "archive", journal).code == 0


def test_stat_and_doctor_know_the_tier(journal: Path, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    archive(journal, tier)
    address = objects(journal)[0].address.rpartition("/")[0]
    row = json.loads(inside(monkeypatch, "stat", "--json", journal).out)
    assert row["tier"] == {"address": address, "objects": 4, "bytes": 1322}
    assert f"tier      4, 1.3 KiB, in {address}\n" in inside(monkeypatch, "stat", journal).out.decode()
    done = inside(monkeypatch, "doctor", journal)
    assert done.code == 0 and f"ok       cold tier: 4 objects, 1.3 KiB, in {address}\n" in done.out.decode()
    assert "ok       reader cold-tier" in done.out.decode()


def test_restored_segments_are_the_old_ones(journal: Path, tier: str, compress: bool) -> None:
    before = {path.name: path.read_bytes() for path in (journal / "jnl").iterdir()}
    archive(journal, tier, compress=compress)
    assert len(list((journal / "jnl").iterdir())) == 1
    assert [Path(path).name for path in restore(journal)] == sorted(before)[-2::-1]
    assert {path.name: path.read_bytes() for path in (journal / "jnl").iterdir()} == before
    assert restore(journal) == []


@pytest.mark.parametrize("on_corruption", ["raise", "skip"])
@pytest.mark.parametrize("damage", ["missing", "has 100 bytes", "CRC32C"])
def test_a_wrong_object_is_an_error_with_its_name(
    journal: Path, tmp_path: Path, damage: str, on_corruption: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(journal, tmp_path / "tier")
    hurt = objects(journal)[1]
    assert inside(monkeypatch, "file", journal, str(hurt.first_offset)).out.decode() == f"{hurt.address}\n"
    copy = shutil.copy(hurt.path, tmp_path / "copy")
    if damage == "missing":
        os.unlink(hurt.path)
    elif damage == "CRC32C":
        overwrite(Path(hurt.path), 60, b"X")
    else:
        os.truncate(hurt.path, 100)
    with sej.Scanner(journal, on_corruption=on_corruption) as scanner:
        taken = scanner.read(hurt.first_offset)
        assert [message.offset for message in taken] == list(range(hurt.first_offset))
        with pytest.raises(sej.CorruptionError, match=damage) as raised:
            scanner.read()
    assert str(raised.value.path) == hurt.address and "sej archive verify" in str(raised.value)
    assert [error.path for error in problems(journal)] == [hurt.address]
    assert inside(monkeypatch, "doctor", "--quick", journal).code == 0  # a scrape of metrics waits for no store
    done = inside(monkeypatch, "doctor", journal)
    lost = f"; 1 missing or of another size, the first is {hurt.address}"
    assert damage == "CRC32C" or (done.code == 1 and lost in done.out.decode())
    done = inside(monkeypatch, "archive", "verify", journal)
    assert done.code == 1 and hurt.address in done.out.decode()
    os.replace(copy, hurt.path)
    assert inside(monkeypatch, "archive", "verify", journal).code == 0
    assert inside(monkeypatch, "archive", journal).code == inside(monkeypatch, "archive", "move", journal).code == 0
    assert offsets(journal) == list(range(COUNT))


def test_a_gap_divides_an_object(journal: Path, tmp_path: Path) -> None:
    segment = sej.Journal(journal).segments[1]
    overwrite(Path(segment.path), 8, b"\xff" * 40)
    with pytest.raises(sej.CorruptionError):
        archive(journal, tmp_path / "tier")
    before = sej.Journal(journal).repair()
    lost = {number for gap in before.gaps for number in range(gap.start, gap.stop)}
    archive(journal, tmp_path / "tier")
    assert lost and offsets(journal) == [number for number in range(COUNT) if number not in lost]


def test_what_cannot_be_archived_says_why(journal: Path, tmp_path: Path) -> None:
    with pytest.raises(sej.SejError, match="pass --to"):
        archive(journal, None)
    archive(journal, tmp_path / "tier")
    with pytest.raises(sej.SejError, match="has its tier in"):
        archive(journal, tmp_path / "other")
    with sej.Offset(journal, "cold-tier"), pytest.raises(sej.LockedError):
        archive(journal, None)
    fill(tmp_path / "new")
    with pytest.raises(sej.JournalNotFoundError, match="no cold tier"):
        objects(tmp_path / "new")
    (journal / "tier.json").write_text("{}")
    with pytest.raises(sej.CorruptionError, match="restore it from a backup"):
        offsets(journal)


def test_compressed_objects_are_small_and_of_gzip(tmp_path: Path, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with sej.Writer(tmp_path / "j", segment_bytes=1 << 18) as writer:
        writer.append_many([b'{"flight": %d, "from": "EWR"}' % number for number in range(30_000)])
    assert inside(monkeypatch, "archive", "--compress", "--to", tier, tmp_path / "j").code == 0
    found = objects(tmp_path / "j")
    stored, whole = sum(each.listed.stored_size for each in found), sum(each.listed.size for each in found)
    assert len(found) > 3 and whole > 1 << 20 and stored * 5 < whole
    row = json.loads(inside(monkeypatch, "stat", "--json", tmp_path / "j").out)
    assert row["tier"]["bytes"] == stored
    assert "ok       cold tier" in inside(monkeypatch, "doctor", tmp_path / "j").out.decode()
    if "://" not in tier:
        place = inside(monkeypatch, "file", tmp_path / "j", "0").out.decode().strip()
        done = inside(monkeypatch, "dump", place)
        assert (
            done.code == 4 and done.err == f"sej: {place}: this is compressed; expand it first: `gunzip --keep FILE`\n"
        )
        assert [os.path.getsize(each.address) for each in found] == [each.listed.stored_size for each in found]
        data = b"".join(gzip.decompress(Path(each.address).read_bytes()) for each in found)
        assert restore(tmp_path / "j") and data == b"".join(
            Path(each.path).read_bytes() for each in sej.Journal(tmp_path / "j").segments[:-1]
        )
    assert len(list(sej.Scanner(tmp_path / "j"))) == 30_000


@pytest.mark.parametrize("damage", ["is missing", "bytes, expected", "is not the gzip", "has 300 bytes"])
def test_a_wrong_compressed_object_is_an_error_with_its_name(journal: Path, tmp_path: Path, damage: str) -> None:
    archive(journal, tmp_path / "tier", compress=True)
    hurt = objects(journal)[1]
    place, data = Path(hurt.address), Path(hurt.address).read_bytes()
    os.unlink(hurt.path)  # this process's copy
    if damage == "is missing":
        place.unlink()
    elif damage == "is not the gzip":
        place.write_bytes(data[:30] + b"XXXX" + data[34:])
    elif damage == "has 300 bytes":
        place.write_bytes(gzip.compress(bytes(300)))
    else:
        place.write_bytes(data[: len(data) // 2])
    with sej.Scanner(journal) as scanner, pytest.raises(sej.CorruptionError, match=damage) as raised:
        list(scanner)
    assert str(raised.value.path) == hurt.address
    place.write_bytes(data)
    assert offsets(journal) == list(range(COUNT))


def test_a_gzip_that_claims_too_much_costs_no_disk(journal: Path, tmp_path: Path) -> None:
    archive(journal, tmp_path / "tier", compress=True)
    hurt = objects(journal)[1]
    os.unlink(hurt.path)
    Path(hurt.address).write_bytes(gzip.compress(bytes(64 << 20), 1))
    with sej.Scanner(journal) as scanner, pytest.raises(sej.CorruptionError, match="bytes, expected"):
        list(scanner)
    assert os.path.getsize(hurt.path) < 4 << 20


def test_power_may_fail_at_every_step(compress: bool) -> None:
    disk = CrashDisk()
    fill("/j", 24, disk)
    since = len(disk.trace)
    archive("/j", "/tier", compress=compress, disk=disk)
    every = list(range(24))
    for crash in disk.crash_states(since=since):
        assert offsets("/j", disk=crash.disk) == every, crash.step
        archive("/j", "/tier", compress=compress, disk=crash.disk)
        assert offsets("/j", disk=crash.disk) == every, crash.step
        assert list(problems("/j", disk=crash.disk)) == [], crash.step
        assert len(sej.Journal("/j", disk=crash.disk).segments) == 1, crash.step
    since = len(disk.trace)
    restore("/j", disk=disk)
    for crash in disk.crash_states(since=since):
        assert offsets("/j", disk=crash.disk) == every, crash.step
    gc.collect()


def test_every_call_may_fail(tmp_path: Path) -> None:
    fill(tmp_path / "j", 24)
    calls = 0
    while True:
        calls += 1
        journal, tier = tmp_path / f"j{calls}", tmp_path / f"tier{calls}"
        shutil.copytree(tmp_path / "j", journal)
        disk = FaultyDisk(OS, calls)
        with contextlib.suppress(OSError):
            archive(journal, tier, disk=disk)
        if disk.failed is None:
            break
        assert offsets(journal) == list(range(24)), calls
        archive(journal, tier)
        assert offsets(journal) == list(range(24)), calls
        assert list(problems(journal)) == [] and len(sej.Journal(journal).segments) == 1
    assert calls > 20
