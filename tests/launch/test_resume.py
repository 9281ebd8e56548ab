"""A job that is killed starts again and goes on from its newest checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launching import Launch, Script

RUN = """
import json, os, signal, sys
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration

torch.manual_seed(0)
project = ProjectConfiguration(sys.argv[1], automatic_checkpoint_naming=True, total_limit=1)
accelerator = Accelerator(cpu=True, project_config=project)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.arange(16.0).view(-1, 1), batch_size=1, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
resumed = accelerator.resume()
for step, batch in enumerate(loader):
    accelerator.backward(model(batch).mean())
    optimizer.step()
    optimizer.zero_grad()
    with open(f"{sys.argv[1]}/seen-{accelerator.process_index}", "a") as file:
        file.write(json.dumps([resumed is not None, int(batch.item())]) + "\\n")
    if step == 2 and resumed is None:
        accelerator.save_state()
    if step == 4 and resumed is None and accelerator.process_index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
accelerator.end_training()
"""


@pytest.mark.timeout(180)
def test_a_killed_job_goes_on_from_its_newest_checkpoint(launch: Launch, script: Script, tmp_path: Path) -> None:
    done = launch("--cpu", "--num_processes", 2, "--resume", "auto", "--max_restarts", 1, script(RUN), tmp_path)
    assert done.code == 0
    kept: list[int] = []
    for rank in range(2):
        lines = [json.loads(line) for line in (tmp_path / f"seen-{rank}").read_text().splitlines()]
        first = [item for resumed, item in lines if not resumed]
        second = [item for resumed, item in lines if resumed]
        # What came after the checkpoint comes again, in the same order.
        assert second[: len(first) - 3] == first[3:]
        kept += first[:3] + second
    assert sorted(kept) == list(range(16))
