"""Compatibility path of comparing versions."""

from accelerate.optional import compare_versions, is_torch_version

__all__ = ["compare_versions", "is_torch_version"]
