"""What importing the main class adds once torch is there: a difference that is small beside torch's own time."""

from __future__ import annotations

import json
import time

started = time.process_time()
import torch  # noqa: E402, F401

torch_there = time.process_time()
from accelerate import Accelerator  # noqa: E402, F401

there = time.process_time()
print(json.dumps({"torch": [torch_there - started], "both": [there - started]}))
