"""The launchers in a real Jupyter kernel."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = [
    "import torch\nfrom accelerate import Accelerator, RunConfig, launch, notebook_launcher",
    "def train(word):\n"
    "    acc = Accelerator(cpu=True)\n"
    "    found = acc.gather(torch.tensor([acc.process_index + 1])).tolist()\n"
    "    acc.print(f'{word} {found} {acc.num_processes}')\n"
    "    return found",
    "notebook_launcher(train, ('hello',), num_processes=2)",
    "launch(train, 'again', config=RunConfig(num_processes=2, cpu=True))",
    "def fail():\n    raise ValueError('bad')\nnotebook_launcher(fail, num_processes=2)",
    "x = 1\nacc = Accelerator(cpu=True)",
    "notebook_launcher(train, ('late',), num_processes=2)",
]


# Of the kernel and its client: what they print about ports, and what they leave to the collector.
@pytest.mark.filterwarnings("ignore")
def test_cells_start_ranks() -> None:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    NotebookClient(book, timeout=60, allow_errors=True).execute()

    def shown(cell: int, kind: str, field: str) -> Any:
        return "".join(str(out[field]) for out in book.cells[cell].outputs if out.output_type == kind)

    assert "hello [1, 2] 2\n" in shown(2, "stream", "text")
    assert book.cells[3].outputs[-1]["data"]["text/plain"] == "[[1, 2], [1, 2]]"
    assert (shown(4, "error", "ename"), shown(4, "error", "evalue")) == ("ValueError", "bad")
    assert "rank" in "".join(book.cells[4].outputs[-1]["traceback"])
    assert shown(5, "error", "ename") == ""
    assert shown(6, "error", "ename") == "StateError"
    assert "constructed here, by line 2 of cell [6]. Restart the kernel" in shown(6, "error", "evalue")
