"""The container image of docs/howto/cluster.md, as far as it can be checked without a container engine."""

import re
import shlex
import tomllib
from importlib.metadata import version
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.house.house import ROOT

PAGE = (ROOT / "docs" / "howto" / "cluster.md").read_text()
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def image() -> list[tuple[str, list[str]]]:
    """The instructions of the Dockerfile with their words."""
    block = re.search(r"^```\n(FROM .*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert block is not None
    lines = block[1].replace("\\\n", " ").splitlines()
    return [(line.split()[0], shlex.split(line)[1:]) for line in lines]


def words(image: list[tuple[str, list[str]]], instruction: str) -> list[str]:
    return [word for name, found in image if name == instruction for word in found]


def spark_requirements() -> dict[str, Requirement]:
    return {each.name: each for each in map(Requirement, PROJECT["optional-dependencies"]["spark"])}


def test_its_spark_is_the_one_that_is_tested(image: list[tuple[str, list[str]]]) -> None:
    name, _, tag = words(image, "FROM")[0].partition(":")
    assert name == "apache/spark"
    assert tag in spark_requirements()["pyspark"].specifier
    assert tag.rpartition(".")[0] == version("pyspark").rpartition(".")[0]


def test_its_python_has_what_the_extra_spark_names_except_spark(image: list[tuple[str, list[str]]]) -> None:
    run = words(image, "RUN")
    assert f"Programming Language :: Python :: {run[run.index('venv') + 2]}" in PROJECT["classifiers"]
    _, *packages = run[run.index("--python", run.index("install")) + 1 :]
    ours, *others = map(Requirement, packages)
    assert ours.name == PROJECT["name"]
    assert ours.extras <= set(PROJECT["optional-dependencies"])
    assert {each.name for each in others} == set(spark_requirements()) - {"pyspark"}


def test_spark_starts_the_python_of_the_environment(image: list[tuple[str, list[str]]]) -> None:
    run = words(image, "RUN")
    (folder,) = (word for word in run[: run.index("&&")] if word.startswith("/"))
    python = f"{folder}/bin/python"
    assert python in run
    names = dict(word.split("=") for word in words(image, "ENV"))
    assert names["PYSPARK_PYTHON"] == names["PYSPARK_DRIVER_PYTHON"] == python


def test_it_runs_the_job_as_the_images_user(image: list[tuple[str, list[str]]]) -> None:
    users = words(image, "USER")
    assert users == ["root", "185"]  # a number: Kubernetes cannot tell whether a named user is root
    assert image[-1] == ("USER", ["185"])
    source, job = next(found for name, found in image if name == "COPY" and not found[0].startswith("--from"))
    assert source == "job.py"
    assert f"local://{job}" in PAGE
