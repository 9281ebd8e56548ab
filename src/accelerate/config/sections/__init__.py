"""The settings of a launch, one dataclass a subject."""
