"""What killed jobs leave is named and removed by the doctor, and nothing that is still needed."""

import os
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import sej
from pipeline.cli import app
from pipeline.health import look
from pipeline.options import WRITE, parse
from pipeline.writing.target import Target
from sej.system.locks import Lock
from sej.system.sealed import unseal
from shard.committing import ANONYMOUS, Job, _decision
from shard.staging import Owner, Stage
from tests.house.house import ROOT, run

GONE = Owner(Owner.here().host, 2**22 + 1, 1)


def staged(target: Target, job: str, owner: Owner, shard: int = 0) -> Stage:
    stage = Stage(target.staging, job, owner)
    stage.append(shard, [b"%s-%d" % (job.encode(), shard)], [b""], 0, 1)
    return stage


def left(target: Target) -> set[str]:
    names = [name for name in os.listdir(target.staging) if name.startswith(("task-", "job-"))]
    return {name.removesuffix(".json").split("-")[1] for name in names}


@pytest.fixture(params=["tree", "journal"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
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


def test_the_doctor_removes_files_that_no_job_needs(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Owner, "is_gone", lambda owner, _: owner == GONE)
    places = [target.root, target.directory(0).path]
    first, second = look(places[0])
    assert "not finished: decided" in first[2]
    assert first[3].endswith(f"or `sej spark finish {target.root}`")
    assert second[2] == f"removed 1 folder(s) of dead jobs from {target.staging}"
    assert left(target) == {"running", "decided"}
    assert [row[1] for row in look(places[1])] == ["note"]
    with Lock(os.path.join(target.staging, "commit.lck")).acquire():
        assert [row[2] for row in look(places[0])] == [f"a job is committing to {target.root}"]


def test_the_program_does_so(target: Target) -> None:
    done = run([sys.executable, "-m", "sej", "doctor", target.root], ROOT)
    assert done.returncode == 0, done.stderr
    assert "folder(s) of dead jobs from" in done.stdout
    assert "dead" not in left(target)


def test_a_command_finishes_what_was_decided(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Owner, "is_gone", lambda owner, _: owner == GONE)
    _, _, _, do = next(look(target.root))
    assert shlex.split(do.split("`")[1]) == ["sej", "spark", "finish", target.root]
    done = CliRunner().invoke(app, shlex.split(do.split("`")[1])[2:])
    assert done.exit_code == 0, done.output
    assert left(target) == {"running"}
    with sej.Scanner(target.directory(0).path) as scanner:
        assert [message.value for message in scanner] == [b"first", b"decided-0"]
    assert unseal("done.json", Path(target.staging, "done.json").read_bytes())


def test_the_doctor_reports_nothing_if_no_job_wrote(tmp_path: Path) -> None:
    sej.Writer(tmp_path / "j").close()
    assert list(look(tmp_path / "j")) == []
    assert list(look(tmp_path)) == []
