"""Old configuration files in today's form."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelerate.cli.main import main
from accelerate.config.resolve import resolve

OLD = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nfp16: true\nnum_processes: 2\nuse_xpu: false\n"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.yaml"
    path.write_text(OLD)
    return path


def test_it_means_the_same_afterwards_and_changes_no_more(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meant = resolve(None, {}, old).config
    assert main(["migrate", str(old)]) == 0
    assert f"{old} rewritten." in capsys.readouterr().out
    text = old.read_text()
    assert "fp16" not in text.split("mixed_precision")[0] and "mixed_precision: fp16" in text and "use_xpu" not in text
    assert text.count("  # ") > 5
    again = resolve(None, {}, old)
    assert (again.config, again.notices) == (meant, ())
    assert main(["migrate", str(old)]) == 0
    assert capsys.readouterr().out == f"{old} is in today's form.\n"
    assert old.read_text() == text
    assert [path.name for path in old.parent.iterdir()] == ["old.yaml"]


def test_a_dry_run_shows_the_difference(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "--dry_run", str(old)]) == 0
    shown = capsys.readouterr().out
    assert "\n-fp16: true\n" in shown and "\n+mixed_precision: fp16  # " in shown and "use_xpu" in shown
    assert old.read_text() == OLD


def test_all_or_none(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = old.with_name("wrong.yaml")
    wrong.write_text("num_proceses: 2\n")
    assert main(["migrate", str(old), str(wrong)]) == 1
    assert "num_processes" in capsys.readouterr().err
    assert old.read_text() == OLD
    assert main(["migrate", str(old), str(old.with_name("none.yaml"))]) == 1
    assert old.read_text() == OLD


def test_a_link_stays_one(old: Path) -> None:
    link = old.with_name("link.yaml")
    link.symlink_to(old)
    assert main(["migrate", str(link)]) == 0
    assert link.is_symlink() and "mixed_precision: fp16" in old.read_text()
