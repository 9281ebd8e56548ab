"""Compatibility path of the installer of torch_xla."""

from accelerate.unbuilt import install_xla

__all__ = ["install_xla"]
