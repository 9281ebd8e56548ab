"""The table of launchers, in the order in which they are asked."""

from __future__ import annotations

from importlib import import_module

from accelerate.errors import LaunchError
from accelerate.launch.base import Job, Launcher

__all__ = ["choose", "names", "register"]

GROUP = "accelerate.launchers"

_own: dict[str, Launcher] = {}

# In the order of asking; a module is imported when its turn comes.
_BUILT_IN = {
    "deepspeed": ("accelerate.launch.deepspeed", "DeepSpeedLauncher"),
    "mpi": ("accelerate.launch.mpi", "MpiLauncher"),
    "inline": ("accelerate.launch.inline", "InlineLauncher"),
    "torchrun": ("accelerate.launch.torchrun", "TorchrunLauncher"),
    "slurm": ("accelerate.launch.slurm", "SlurmLauncher"),
}


def register(launcher: Launcher) -> None:
    """Adds a launcher of the user's own. It is asked before the built-in ones, and found by its name."""
    _own[launcher.name] = launcher


def names() -> tuple[str, ...]:
    """What ``--engine`` can be without an entry point."""
    from accelerate.launch.unbuilt import UNBUILT

    return (*_own, *_BUILT_IN, *(launcher.engine for launcher in UNBUILT))


def choose(job: Job) -> Launcher:
    """The launcher for ``job``: the one its ``engine`` names, else the first that accepts it.

    Launchers of entry points are looked up by name only, because reading every installed package's would slow down
    each launch.

    Raises:
        LaunchError: nobody is called so.
    """
    if job.config.engine:
        return _by_name(job.config.engine)
    from accelerate.launch.unbuilt import UNBUILT

    for launcher in (*_own.values(), *UNBUILT):
        if launcher.accepts(job):
            return launcher
    for name in _BUILT_IN:
        launcher = _load(name)
        if launcher.accepts(job):
            return launcher
    raise LaunchError(f"No launcher accepts a job with --num_processes {job.config.num_processes}.")


def _load(name: str) -> Launcher:
    module, attribute = _BUILT_IN[name]
    launcher: Launcher = getattr(import_module(module), attribute)()
    return launcher


def _by_name(name: str) -> Launcher:
    from accelerate.launch.unbuilt import UNBUILT

    if name in _own:
        return _own[name]
    if name in _BUILT_IN:
        return _load(name)
    for row in UNBUILT:
        if row.engine == name:
            return row
    from difflib import get_close_matches
    from importlib.metadata import entry_points

    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name in found:
        loaded = found[name].load()
        launcher: Launcher = loaded() if isinstance(loaded, type) else loaded
        return launcher
    known = [*names(), *found]
    near = get_close_matches(name, known, n=1)
    mean = f" Did you mean {near[0]!r}?" if near else ""
    raise LaunchError(
        f"--engine {name} was asked for, but no launcher is called so.{mean} Known are {', '.join(known)}."
    )
