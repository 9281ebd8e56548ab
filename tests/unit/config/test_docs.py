"""The table of settings in the documentation is the one that the declarations make."""

from __future__ import annotations

from accelerate.config.docs import settings_table
from source import ROOT


def test_the_table_is_up_to_date() -> None:
    written = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert written == settings_table(), "run `python -m accelerate.config.docs > docs/settings.md`"
