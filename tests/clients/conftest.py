"""What these tests need of their surroundings: the libraries they drive, imported once, and no network."""

from __future__ import annotations

import warnings

# A library's own warnings, on import, are its own business; what is said during a job is looked at in the job.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import Trainer, TrainingArguments  # noqa: F401  # forks find it imported
