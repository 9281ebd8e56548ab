"""The public path of the optimizer wrapper."""

from accelerate.strategies.optimizer import AcceleratedOptimizer as AcceleratedOptimizer
from accelerate.strategies.optimizer import move_to_device as move_to_device
from accelerate.strategies.optimizer import patch_optimizer_step as patch_optimizer_step
