"""Everything about a release that can be checked without a network. Leaves the checked archives in `dist`.

    .venv/bin/python -m tools.release_check

`make release-tools` installs what the last two checks need; without it they are reported as not run. A commit with a
tag must be a release: the tag is `v` and the version, and the changelog has the date.
"""

import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import sej

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "build" / "release" / "bin"
USE = """
import sys, sej, hub, shard, textqueue, kestrel, pipeline
from sej import codec
with sej.Writer("orders") as writer:
    writer.append(b"3 apples", b"alice")
assert [message.value for message in sej.Scanner("orders")] == [b"3 apples"]
print(sej.__version__, codec.IMPLEMENTATION, sej.__file__)
"""


class NotReadyError(Exception):
    """A check failed."""


class NotRunError(Exception):
    """A check needs a program that is not installed."""


def entry_of(changelog: str, version: str, tags: list[str]) -> str:
    """Return the heading of the newest version.

    Args:
        changelog: the text of the changelog.
        version: the version of the source.
        tags: the tags of the commit; with one, the commit must be a release.

    Raises:
        NotReadyError: the newest entry is not that of the version, is empty, or has no date although there is a tag.
    """
    found = re.search(r"^## (\S+), (.+)\n+(?!## )\S", changelog, re.MULTILINE)
    if found is None or found[1] != version:
        newest = found[1] if found else "none"
        raise NotReadyError(f"CHANGELOG.md: expected an entry for {version} as the newest, got {newest}")
    dated = re.fullmatch(r"\d{4}-\d{2}-\d{2}", found[2])
    if not dated and found[2] != "unreleased":
        raise NotReadyError(f"CHANGELOG.md: expected a date (2026-01-31) or 'unreleased' for {version}, got {found[2]}")
    for tag in tags:
        if tag != f"v{version}":
            raise NotReadyError(f"the commit has the tag {tag}, but sej.__version__ is {version}")
        if not dated:
            raise NotReadyError(f"CHANGELOG.md: {version} has the tag {tag} but no date")
    return found[0].splitlines()[0]


def changelog() -> str:
    """The newest entry is that of the version."""
    tags = output("git", "tag", "--points-at", "HEAD").split()
    return entry_of((ROOT / "CHANGELOG.md").read_text(), sej.__version__, tags)


def citation() -> str:
    """CITATION.cff names the version."""
    found = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    if found is None or found[1] != sej.__version__:
        raise NotReadyError(f"CITATION.cff: expected version {sej.__version__}, got {found and found[1]}")
    return found[1]


def committed() -> str:
    """The archives are those of a commit."""
    if changed := output("git", "status", "--porcelain"):
        raise NotReadyError(f"commit or remove first:\n{changed}")
    return output("git", "rev-parse", "--short", "HEAD").strip()


def reproducible() -> str:
    """Two builds give the same bytes."""
    with tempfile.TemporaryDirectory() as folder:
        built = []
        for name, umask in (("one", 0o022), ("two", 0o077)):
            target = Path(folder, name)
            run(sys.executable, "-m", "build", "--no-isolation", "--outdir", target, ROOT, umask=umask)
            built.append({path.name: path.read_bytes() for path in target.iterdir()})
        if built[0] != built[1]:
            different = sorted(name for name in built[0] if built[0][name] != built[1].get(name))
            raise NotReadyError(f"two builds differ in {', '.join(different)}")
        shutil.rmtree(ROOT / "dist", ignore_errors=True)
        shutil.copytree(Path(folder, "one"), ROOT / "dist")
    return ", ".join(sorted(built[0]))


def installed() -> str:
    """The wheel works in an empty environment, for a user without privileges.

    The dependencies are those of this environment, because an installation would need a network.
    """
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        home.mkdir()
        if user:
            os.chmod(folder, 0o755)
            os.chown(home, user.pw_uid, user.pw_gid)
        packages = Path(folder, "packages")
        with zipfile.ZipFile(wheel()) as archive:
            archive.extractall(packages)
        dependencies = Path(*Path(sys.executable).parts[:-2], "lib", f"python3.{sys.version_info.minor}")
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "SEJ_CODEC": "c"}
        env["PYTHONPATH"] = os.pathsep.join([str(packages), str(dependencies / "site-packages")])
        done = subprocess.run(
            [runnable_by(user), "-S", "-W", "error", "-c", USE],
            user=user and user.pw_uid,
            group=user and user.pw_gid,
            extra_groups=() if user else None,
            cwd=home,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or str(packages) not in done.stdout:
            raise NotReadyError(f"the wheel does not work: {done.stdout}{done.stderr}")
    return f"{done.stdout.split()[0]}, codec {done.stdout.split()[1]}{', as nobody' if user else ''}"


def runnable_by(user: pwd.struct_passwd | None) -> Path:
    """Return a Python of this version that the user may run; that of this environment if it can be."""
    version = f"python3.{sys.version_info.minor}"
    for python in (Path(sys.executable).resolve(), Path("/usr/bin", version), Path("/usr/local/bin", version)):
        try:
            subprocess.run([python, "-c", ""], user=user and user.pw_uid, check=True)
        except OSError:
            continue  # it is missing, or in a folder of another user
        return python
    raise NotRunError(f"the user {user and user.pw_name} can run no {version}")


def manylinux() -> str:
    """The extensions need only what every Linux of their platform tag has."""
    shown = output(tool("auditwheel"), "show", wheel())
    found = re.search(r'platform tag: "(manylinux_2_\d+_\w+)"', " ".join(shown.split()))
    if found is None:
        raise NotReadyError(f"auditwheel finds no manylinux platform:\n{shown}")
    return found[1]


def described() -> str:
    """The archives have the metadata that an index expects."""
    output(tool("twine"), "check", "--strict", *sorted((ROOT / "dist").iterdir()))
    return "metadata and README"


CHECKS: tuple[Callable[[], str], ...] = (changelog, citation, committed, reproducible, installed, manylinux, described)


def main() -> None:
    """Run every check and print one line for each; end with 1 if one failed."""
    os.chdir(ROOT)
    results = [report(check) for check in CHECKS]  # all of them: one failure does not hide the next
    sys.exit(not all(results))


def report(check: Callable[[], str]) -> bool:
    """Print the result of a check; return False if it failed."""
    try:
        print(f"ok       {check.__name__}: {check()}", flush=True)
    except NotRunError as error:
        print(f"not run  {check.__name__}: {error}", flush=True)
    except (NotReadyError, OSError, subprocess.CalledProcessError) as error:
        print(f"FAILED   {check.__name__}: {error}", flush=True)
        return False
    return True


def wheel() -> Path:
    """Return the wheel in dist."""
    found: Iterator[Path] = (ROOT / "dist").glob("*.whl")
    for path in found:
        return path
    raise NotReadyError("dist has no wheel")


def tool(name: str) -> Path:
    """Return the path of a program that `make release-tools` installs."""
    if not (TOOLS / name).exists():
        raise NotRunError(f"{name} is not installed: make release-tools")
    return TOOLS / name


def output(*command: str | Path) -> str:
    """Run a program; return what it printed."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotReadyError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def run(*command: str | Path, umask: int) -> None:
    """Run a program with a umask, without its output unless it fails."""
    done = subprocess.run(command, capture_output=True, text=True, umask=umask, check=False)
    if done.returncode:
        raise NotReadyError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    main()
