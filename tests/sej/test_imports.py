"""How packages import: public names at their first use."""

import importlib

import pytest


@pytest.mark.parametrize("name", ["sej", "shard", "hub", "pipeline"])
def test_a_lazy_package_lists_its_names_and_no_other(name: str) -> None:
    package = importlib.import_module(name)
    assert dir(package) == sorted(package.__all__)
    for export in package.__all__:
        assert getattr(package, export) is getattr(package, export)
    with pytest.raises(AttributeError, match=rf"^module '{name}' has no attribute 'typo'$"):
        _ = package.typo
