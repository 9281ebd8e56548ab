"""What counts as an installed optional package, and what is said when it is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path
from types import ModuleType

import pytest
from packaging.version import Version

from accelerate import optional
from accelerate.errors import MissingPackageError


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the import path in which a test installs what it likes."""
    monkeypatch.syspath_prepend(str(tmp_path))
    optional.forget()
    yield tmp_path
    optional.forget()


def install(site: Path, name: str, version: str | None, *, distribution: str | None = None, files: str = "") -> None:
    package = site / name
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported while only asked for')\n")
    for file in files.split():
        (package / file).parent.mkdir(exist_ok=True)
        (package / file).write_text("")
    if version is not None:
        info = site / f"{(distribution or name).replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution or name}\nVersion: {version}\n")


def test_found_without_importing(site: Path) -> None:
    install(site, "clearml", "1.2")
    assert optional.is_clearml_available() is True
    assert "clearml" not in sys.modules


def test_folder_of_that_name_is_not_the_package(site: Path) -> None:
    (site / "aim").mkdir()
    assert util.find_spec("aim") is not None
    assert optional.is_aim_available() is False


def test_distribution_without_its_module_is_not_enough(site: Path) -> None:
    install(site, "elsewhere", "3.0", distribution="swanlab")
    assert optional.is_swanlab_available() is False


@pytest.mark.parametrize(("version", "there"), [("0.38.9", False), ("0.39.0", True), ("0.46.1", True)])
def test_minimum_version_of_the_table(site: Path, version: str, there: bool) -> None:
    install(site, "bitsandbytes", version)
    assert optional.is_bnb_available() is there
    assert optional.is_4bit_bnb_available() is there
    assert optional.is_bitsandbytes_multi_backend_available() is (version == "0.46.1")


def test_minimum_version_of_the_caller(site: Path) -> None:
    install(site, "bitsandbytes", "0.45.0")
    assert optional.is_bnb_available("0.45.0") is True
    assert optional.is_bnb_available(min_version="0.45.1") is False


def test_distribution_of_another_name(site: Path) -> None:
    install(site, "comet_ml", "3.4", distribution="comet-ml")
    install(site, "mlflow", "2.0", distribution="mlflow-skinny")
    assert optional.is_comet_ml_available() and optional.is_mlflow_available()


def test_submodule_is_asked_for(site: Path) -> None:
    install(site, "transformer_engine", "2.1", distribution="transformer-engine", files="common/a.py")
    assert optional.is_transformer_engine_available() is False
    optional.forget()
    (site / "transformer_engine" / "pytorch").mkdir()
    assert optional.is_transformer_engine_available() is True
    assert optional.is_transformer_engine_mxfp8_available() is True


def test_any_engine_makes_fp8_available(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchao", "transformer_engine", "msamp"):
        monkeypatch.setitem(sys.modules, name, None)
    optional.forget()
    assert optional.is_fp8_available() is False
    monkeypatch.delitem(sys.modules, "msamp")
    install(site, "msamp", "0.4", distribution="ms-amp")
    optional.forget()
    assert optional.is_fp8_available() is True


def test_module_put_there_by_hand_needs_a_distribution(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dvclive", ModuleType("dvclive"))
    assert optional.is_dvclive_available() is False
    install(site, "unrelated", "1.0", distribution="dvclive")
    optional.forget()
    assert optional.is_dvclive_available() is True


def test_unknown_name_stands_for_itself(site: Path) -> None:
    assert optional.available("some_plugin") is False
    install(site, "some_plugin", "7.1")
    optional.forget()
    assert optional.available("some_plugin", "7.0") is True
    assert optional.installed_version("some_plugin") == "7.1"


def test_require_names_package_and_command(site: Path) -> None:
    with pytest.raises(
        MissingPackageError, match="WandBTracker needs the package 'wandb'.*pip install wandb$"
    ) as caught:
        optional.require("wandb", "WandBTracker")
    assert caught.value.name == "wandb"
    assert isinstance(caught.value, ImportError)


def test_require_says_what_is_too_old(site: Path) -> None:
    install(site, "bitsandbytes", "0.30.0")
    with pytest.raises(MissingPackageError, match=r"version 0\.30\.0.*pip install 'bitsandbytes>=0\.39\.0'"):
        optional.require("bitsandbytes", "4-bit loading")


def test_require_looks_again_after_an_installation(site: Path) -> None:
    assert optional.is_aim_available() is False
    install(site, "aim", "3.0")
    optional.require("aim", "AimTracker")
    assert optional.is_aim_available() is True


def test_decorators_check_at_the_call(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    @optional.deepspeed_required
    def build(value: int) -> int:
        calls.append(value)
        return value + 1

    monkeypatch.setitem(sys.modules, "deepspeed", None)
    optional.forget()
    with pytest.raises(MissingPackageError, match="build.*deepspeed"):
        build(1)
    assert calls == []
    monkeypatch.delitem(sys.modules, "deepspeed")
    install(site, "deepspeed", "0.19.0")
    optional.forget()
    assert build(1) == 2


@pytest.mark.parametrize(
    ("version", "operation", "wanted", "holds"),
    [
        ("2.6.0", ">=", "2.6", True),
        ("2.5.1", ">=", "2.6", False),
        ("2.13.0+cpu", "==", "2.13.0", True),
        ("2.13.0+cpu", ">", "2.13.0", False),
        ("2.13.0+cpu", "==", "2.13.0+cpu", True),
        ("2.13.0+cu130", "==", "2.13.0+cpu", False),
        ("2.14.0.dev20260101", "<", "2.14.0", True),
        ("1.0", "!=", "1.1", True),
        ("1.0", "<=", "1.0", True),
    ],
)
def test_compare_versions(version: str, operation: str, wanted: str, holds: bool) -> None:
    assert optional.compare_versions(Version(version), operation, wanted) is holds


def test_compare_versions_of_an_installed_library() -> None:
    assert optional.compare_versions("packaging", ">=", metadata.version("packaging"))
    with pytest.raises(metadata.PackageNotFoundError):
        optional.compare_versions("no-such-library", ">=", "1")
    with pytest.raises(ValueError, match="operation='='"):
        optional.compare_versions("packaging", "=", "1")


def test_torch_version_of_the_loaded_module_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("torch")
    fake.__version__ = "9.1.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", fake)
    assert optional.is_torch_version(">=", "9.0")
    monkeypatch.delitem(sys.modules, "torch")
    assert optional.is_torch_version("==", metadata.version("torch"))


def test_questions_import_neither_torch_nor_the_package() -> None:
    code = (
        "import sys; from accelerate import optional as o\n"
        "[getattr(o, n)() for n in o.__all__ if n.startswith('is_') and n.endswith('available')]\n"
        "o.is_torch_version('>=', '2.6')\n"
        "loaded = {m.partition('.')[0] for m in sys.modules} & {'torch', 'transformers', 'deepspeed', 'peft', 'rich'}\n"
        "print(sorted(loaded))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
