"""The public path of local SGD."""

from accelerate.strategies.local_sgd import LocalSGD as LocalSGD
