"""What ``sej doctor`` checks about the installed packages: whether each import name gives ours."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

from sej.cli.state.findings import Advice, Finding
from sej.names import ADVICE, PACKAGES, foreign

_OF_OURS: Final = re.compile(rf"^({'|'.join(PACKAGES)})(?:$|/|\.py,)", re.MULTILINE)
"""A line of a distribution's RECORD or top_level.txt that names one of our packages."""

_NAMES: Final = [name for package in PACKAGES for name in (package, f"{package}.py")]


def package_findings() -> Iterator[Finding]:
    """Yield a finding for each package that is not ours, or not ours alone; nothing if all is well.

    Unlike the check at import, it reads the lists of files of the other distributions.
    """
    from importlib.util import find_spec

    problems = foreign()
    for found in problems.values():
        yield Finding("packages", "problem", found, Advice(ADVICE))
    owners = _owners()
    own = find_spec("sej")
    home = own.origin.removesuffix("sej/__init__.py") if own is not None and own.origin else ""
    for package in PACKAGES:
        if package in problems:
            continue
        others = sorted(owners.get(package, set()) - {"sej-journals"})
        if others:
            found = f"the distribution {', '.join(others)} has files of the package {package} too"
            yield Finding("packages", "problem", found, Advice(ADVICE))
        spec = find_spec(package)
        origin = (spec.origin or "a folder without __init__.py") if spec is not None else "nothing"
        if not origin.startswith(home):
            found = f"import {package} gives {origin}, not the package in {home}: it is found first"
            yield Finding("packages", "note", found)


def _owners() -> dict[str, set[str]]:
    """Return the names of the distributions that have files of each package.

    ``importlib.metadata.packages_distributions`` gives this for all packages, and takes six times as long.
    """
    from importlib.metadata import distributions

    owners: dict[str, set[str]] = {}
    have_ours: dict[str, bool] = {}
    for distribution in distributions():
        files = ["top_level.txt"]
        folder = str(distribution.locate_file(""))
        if folder not in have_ours:
            have_ours[folder] = any(os.path.lexists(os.path.join(folder, name)) for name in _NAMES)
        if have_ours[folder]:
            files.append("RECORD")  # a long list, and the other distributions cannot have files of our packages
        packages = {package for file in files for package in _OF_OURS.findall(distribution.read_text(file) or "")}
        if packages:
            name = distribution.metadata["Name"]
            for package in packages:
                owners.setdefault(package, set()).add(name)
    return owners
