"""Every error the library raises on purpose.

    AccelerateError
    ├── ConfigError(ValueError)             a setting is wrong, unknown or contradicts another
    │   ├── ConflictError                   the same setting was given twice with different values
    │   ├── EnvironmentValueError           an environment variable cannot be read
    │   └── UnknownKeyError                 a key of a configuration file is not known
    ├── MisplacedArgumentError(TypeError)   a keyword is misspelt or belongs to another object
    ├── NotBuiltError(NotImplementedError)  a promised name whose capability is not there yet
    ├── MissingPackageError(ImportError)    an optional package is absent or too old
    ├── StateError(RuntimeError)            a call at the wrong time, or a state that differs from the one in use
    │   └── NotSetUpError(AttributeError)   an attribute of a state that was not set up, or was reset
    ├── TopologyError(RuntimeError)         the processes do not form the one group that was asked for
    ├── DeviceError(RuntimeError)           the device asked for is not there
    ├── PrepareError(ValueError)            what was given to prepare cannot be prepared together
    ├── CollectiveError(RuntimeError)       ranks disagree in a collective call
    │   └── RankLeftError                   some ranks left while the others wait
    ├── LaunchError(RuntimeError)           the job could not be started
    └── CheckpointError(RuntimeError)       a checkpoint cannot be written or read
        ├── CheckpointNotFoundError(ValueError)  there is no checkpoint where one was looked for
        ├── CheckpointDamagedError          a file is missing or differs from its checksum
        ├── CheckpointMismatchError(ValueError)  found and expected objects differ
        └── PickleRefusedError              a file would have to be unpickled

A message says what was asked (with the value), why it cannot be had here, and what to do. Each class also derives from
the builtin exception that callers of the public interface already catch.
"""

from __future__ import annotations

__all__ = [
    "AccelerateError",
    "CheckpointDamagedError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointNotFoundError",
    "CollectiveError",
    "ConfigError",
    "ConflictError",
    "DeviceError",
    "EnvironmentValueError",
    "LaunchError",
    "MisplacedArgumentError",
    "MissingPackageError",
    "NotBuiltError",
    "NotSetUpError",
    "PickleRefusedError",
    "PrepareError",
    "RankLeftError",
    "StateError",
    "TopologyError",
    "UnknownKeyError",
]


class AccelerateError(Exception):
    """Base of every error raised on purpose."""


class ConfigError(AccelerateError, ValueError):
    """A setting is wrong, unknown or contradicts another."""


class ConflictError(ConfigError):
    """The same setting was given twice with different values; the message quotes both places."""


class EnvironmentValueError(ConfigError):
    """An environment variable holds a value that its setting cannot take."""


class UnknownKeyError(ConfigError):
    """A configuration file has a key that no setting owns."""


class MisplacedArgumentError(AccelerateError, TypeError):
    """A keyword is misspelt, or moved into a configuration object that the message names."""


class NotBuiltError(AccelerateError, NotImplementedError):
    """A promised name is used whose capability is not there yet."""


class MissingPackageError(AccelerateError, ImportError):
    """An optional package is absent or too old; the message names what to install."""


class StateError(AccelerateError, RuntimeError):
    """A call came too early or too late, or asks for a state that differs from the one in use."""


class NotSetUpError(StateError, AttributeError):
    """An attribute of a state was read before the state was set up, or after it was reset."""


class TopologyError(AccelerateError, RuntimeError):
    """The processes do not form the one group that was asked for."""


class DeviceError(AccelerateError, RuntimeError):
    """The device that was asked for is not there."""


class PrepareError(AccelerateError, ValueError):
    """What was given to ``prepare`` cannot be prepared, or not together."""


class CollectiveError(AccelerateError, RuntimeError):
    """Ranks disagree about the collective call they are in."""


class RankLeftError(CollectiveError):
    """Some ranks have left while the others wait for them."""


class LaunchError(AccelerateError, RuntimeError):
    """The job could not be started."""


class CheckpointError(AccelerateError, RuntimeError):
    """A checkpoint cannot be written or read."""


class CheckpointDamagedError(CheckpointError):
    """A file of a checkpoint is missing or does not have the recorded size or checksum."""


class CheckpointNotFoundError(CheckpointError, ValueError):
    """There is no checkpoint at the place, or no place was given to look at."""


class CheckpointMismatchError(CheckpointError, ValueError):
    """The objects in a checkpoint and the objects to restore differ; both sides are listed."""


class PickleRefusedError(CheckpointError):
    """A file could only be read by unpickling it, which was not allowed."""
