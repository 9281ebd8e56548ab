"""Names that are imported when somebody asks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from accelerate import lazy


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package with a lazy name, one that shares its name with a submodule, and a submodule."""
    folder = tmp_path / "lazy_sample"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from accelerate import lazy\n"
        "HOMES = {'lazy_sample.home': 'thing twin', 'lazy_sample.broken': 'gone'}\n"
        "__getattr__, __dir__, __all__ = lazy.attach(__name__, lazy.by_name(HOMES), ['child', 'twin'])\n"
    )
    (folder / "home.py").write_text("thing = object()\ntwin = object()\n")
    (folder / "twin.py").write_text("from lazy_sample.home import twin\n")
    (folder / "child.py").write_text("value = 1\n")
    (folder / "broken.py").write_text("import no_such_module_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "lazy_sample"
    for name in [name for name in sys.modules if name.partition(".")[0] == "lazy_sample"]:
        del sys.modules[name]


def test_names_are_imported_on_first_use(package: str) -> None:
    module = import_module(package)
    assert "lazy_sample.home" not in sys.modules
    assert module.thing is import_module("lazy_sample.home").thing
    assert "thing" in vars(module)  # found at once from now on
    assert module.__all__ == ["gone", "thing", "twin"]
    assert {"thing", "child", "__name__"} <= set(dir(module))


def test_submodules_are_attributes(package: str) -> None:
    module = import_module(package)
    assert module.child.value == 1


def test_name_is_not_hidden_by_a_submodule(package: str) -> None:
    module = import_module(package)
    child = import_module("lazy_sample.twin")
    assert module.twin is import_module("lazy_sample.home").twin is child.twin


def test_names_can_be_replaced(package: str) -> None:
    module = import_module(package)
    module.thing = 5
    assert module.thing == 5


def test_errors_stay_what_they_are(package: str) -> None:
    module = import_module(package)
    with pytest.raises(AttributeError, match="module 'lazy_sample' has no attribute 'nothing'"):
        module.nothing  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        module.gone  # noqa: B018


def test_by_name() -> None:
    assert lazy.by_name({"a": "x y", "b": "z"}) == {"x": "a", "y": "a", "z": "b"}
