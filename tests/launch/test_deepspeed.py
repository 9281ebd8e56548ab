"""DeepSpeed by the command line."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, torch
from accelerate import Accelerator

accelerator = Accelerator()
net = torch.nn.Linear(4, 2)
data = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
model, optimizer, data = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1), data)
for batch in data:
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
    optimizer.zero_grad()
plugin = accelerator.state.deepspeed_plugin
print("RESULT " + json.dumps([accelerator.num_processes, plugin.zero_stage, plugin.deepspeed_config["train_batch_size"],
                              type(model).__name__, net.weight.sum().item()]), flush=True)
"""


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "accelerate.commands.launch", *words]


def _results(texts: list[str]) -> list[list[object]]:
    """What ranks printed; two of them may share a line."""
    decoder = json.JSONDecoder()
    return [decoder.raw_decode(part)[0] for text in texts for part in text.split("RESULT ")[1:]]


def test_two_machines_with_the_standard_launcher(tmp_path: Path) -> None:
    """Two launches on this host, as each of two machines would start its own."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    words = ["--use_deepspeed", "--zero_stage", "2", "--deepspeed_multinode_launcher", "standard", "--cpu"]
    words += ["--num_machines", "2", "--num_processes", "2", "--main_process_ip", "127.0.0.1"]
    words += ["--main_process_port", port]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    jobs = [
        subprocess.Popen(
            _command(*words, "--machine_rank", str(rank), str(script)),
            env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    try:
        said = [job.communicate(timeout=170) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    assert [job.returncode for job in jobs] == [0, 0], said
    found = _results([out for out, _ in said])
    assert [row[:4] for row in found] == [[2, 2, 4, "DeepSpeedEngine"]] * 2
    assert found[0][4] == found[1][4]


def test_a_host_file_by_deepspeeds_runner(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=2\n")
    words = ["--use_deepspeed", "--zero_stage", "1", "--deepspeed_hostfile", str(hosts), "--num_processes", "2"]
    words += ["--deepspeed_multinode_launcher", "nossh"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(
        _command(*words, "--main_process_ip", "127.0.0.1", "--cpu", str(script)),
        env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [row[:4] for row in _results([done.stdout])] == [[2, 1, 4, "DeepSpeedEngine"]] * 2
