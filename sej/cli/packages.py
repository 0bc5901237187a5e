"""What ``sej doctor`` checks about the installed packages: whether each import name gives ours."""

from __future__ import annotations

from collections.abc import Iterator

from sej.cli.findings import Finding
from sej.names import ADVICE, PACKAGES, foreign

__all__ = ["package_findings"]


def package_findings() -> Iterator[Finding]:
    """Yield a finding for each package that is not ours, or not ours alone; nothing if all is well.

    Unlike the check at import, it reads the list of files of every distribution.
    """
    from importlib.metadata import packages_distributions
    from importlib.util import find_spec

    problems = dict(foreign())
    for found in problems.values():
        yield Finding("packages", "problem", found, ADVICE)
    owners = packages_distributions()
    own = find_spec("sej")
    home = own.origin.removesuffix("sej/__init__.py") if own is not None and own.origin else ""
    for package in PACKAGES:
        if package in problems:
            continue
        others = sorted(set(owners.get(package, ())) - {"sej-journals"})
        if others:
            found = f"the distribution {', '.join(others)} has files of the package {package} too"
            yield Finding("packages", "problem", found, ADVICE)
        spec = find_spec(package)
        origin = (spec.origin or "a folder without __init__.py") if spec is not None else "nothing"
        if not origin.startswith(home):
            found = f"import {package} gives {origin}, not the package in {home}"
            yield Finding("packages", "note", found, "run sej in another directory, or rename that package")
