"""The one place that holds the version: the interface it implements, then this implementation's own label."""

__version__ = "1.15.0+keel"
