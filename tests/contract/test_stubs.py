"""Stubs of the lazy packages say what the tables say."""

from __future__ import annotations

import pytest

from contract.page import PATH, page
from contract.stubs import PACKAGES, path_of, stub


@pytest.mark.parametrize("package", PACKAGES)
def test_stub_is_that_of_the_table(package: str) -> None:
    assert path_of(package).read_text() == stub(package), "run: python tests/contract/stubs.py"


def test_page_says_what_the_tables_say() -> None:
    assert PATH.read_text() == page(), "run: PYTHONPATH=tests python tests/contract/page.py"
