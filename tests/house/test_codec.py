"""The compiled codec runs wherever it can be built; the reference runs if it is requested."""

import os
from pathlib import Path

from tests.house.house import has_compiler, python

ASK = "import sej.codec; print(sej.codec.IMPLEMENTATION)"


def test_this_environment_has_the_compiled_codec_where_it_can(tmp_path: Path) -> None:
    expected = "c" if has_compiler(tmp_path) else "python"
    env = {"SEJ_CODEC": ""} if os.environ.get("SEJ_CODEC") else {}
    assert python(ASK, tmp_path, **env).stdout.strip() == expected


def test_the_reference_can_be_forced(tmp_path: Path) -> None:
    assert python(ASK, tmp_path, SEJ_CODEC="python").stdout.strip() == "python"
