"""Checkpoints, and models and objects as files."""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from accelerate import checkpoint, env, runtime
from accelerate.checkpoint.identity import Identities
from accelerate.comm.where import user_frame
from accelerate.errors import ConfigError, MisplacedArgumentError, PrepareError

if TYPE_CHECKING:
    from accelerate.accelerator.typing import Facade
    from accelerate.checkpoint.adapter import LoadReport
    from accelerate.checkpoint.asynchronous import Save
    from accelerate.checkpoint.meeting import Meeting
    from accelerate.checkpoint.parts import Subject
    from accelerate.checkpoint.preempt import StopFlag
    from accelerate.checkpoint.save import Saver

__all__ = ["PersistenceMixin"]

PathLike = str | os.PathLike[str]


class PersistenceMixin:
    """Saves and restores what was prepared, and finds the way back to it.

    The modules of ``checkpoint`` are imported by the first call that needs them: a script that saves nothing starts
    without.
    """

    _identities: Identities
    _meeting: Meeting | None
    _open_saver: Saver | None
    _stop_flag: StopFlag | None
    _save_model_state_pre_hook: OrderedDict[int, Callable[..., Any]]
    _load_model_state_pre_hook: OrderedDict[int, Callable[..., Any]]

    def _start_persistence(self) -> None:
        self._identities = Identities()
        # A rank is known to the others before any of them saves, or they would not wait for it.
        several = runtime.current().topology.world_size > 1
        self._meeting = checkpoint.job.meeting_of_job() if several else None
        self._open_saver = None
        self._stop_flag = None
        self._save_model_state_pre_hook = OrderedDict()
        self._load_model_state_pre_hook = OrderedDict()

    @property
    def _saver(self) -> Saver:
        if self._open_saver is None:
            store = checkpoint.local_store.LocalStore(durable=env.flag("ACCELERATE_CHECKPOINT_FSYNC", True))
            self._open_saver = checkpoint.save.Saver(store, self._meeting)
        return self._open_saver

    @property
    def _stop(self) -> StopFlag:
        if self._stop_flag is None:
            self._stop_flag = checkpoint.preempt.StopFlag()
        return self._stop_flag

    def _note_names(self, given: Iterable[Any], prepared: Iterable[Any]) -> None:
        """Remembers by which variables the caller holds what it gives to ``prepare``."""
        self._identities.note(user_frame(sys._getframe(1)), list(given), list(prepared))

    def _finish_saves(self) -> None:
        """Waits for a save in the background and raises its error; takes the signal handlers off."""
        if self._stop_flag is not None:
            self._stop_flag.restore()
        if self._open_saver is not None:
            self._open_saver.release()

    @property
    def project_dir(self: Facade) -> str | None:
        """Where the project's files go."""
        return self.project_configuration.project_dir  # type: ignore[no-any-return]

    @property
    def logging_dir(self: Facade) -> str | None:
        """Where trackers write."""
        return self.project_configuration.logging_dir  # type: ignore[no-any-return]

    @property
    def save_iteration(self: Facade) -> int:
        """The number of the next checkpoint under automatic naming."""
        return self.project_configuration.iteration  # type: ignore[no-any-return]

    # What belongs to a checkpoint

    def register_for_checkpointing(self: Facade, *objects: Any) -> None:
        """Adds objects of your own to every checkpoint, beside what was prepared.

        Args:
            *objects: Anything with ``state_dict()``, which returns numbers, strings, tensors, arrays, lists and
                dictionaries, and ``load_state_dict(state)``.

        Raises:
            PrepareError: an object lacks one of the two. A ValueError.
        """
        unfit = [obj for obj in objects if not (hasattr(obj, "state_dict") and hasattr(obj, "load_state_dict"))]
        if unfit:
            raise PrepareError(
                f"register_for_checkpointing() got {', '.join(type(obj).__name__ for obj in unfit)}, without "
                "state_dict() and load_state_dict(). Give the class both, and register nothing else."
            )
        self._note_names(objects, objects)  # type: ignore[attr-defined]
        self._custom_objects.extend(objects)

    def register_name(self, obj: Any, name: str) -> None:
        """Names an object for checkpoints, where variables do not: objects of one shape are told apart by names."""
        self._identities.name(obj, name)

    def register_save_state_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Calls ``hook(models, weights, folder)`` before ``save_state`` writes, on every rank that takes part.

        A hook may write files into ``folder``, which becomes the checkpoint, and take from ``weights`` the state of
        models it has saved itself.

        Returns:
            A handle whose ``remove()`` takes the hook off.
        """
        return _hooked(self._save_model_state_pre_hook, hook)

    def register_load_state_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Calls ``hook(models, folder)`` before ``load_state`` restores; models it takes out are left alone.

        Returns:
            A handle whose ``remove()`` takes the hook off.
        """
        return _hooked(self._load_model_state_pre_hook, hook)

    # Checkpoints

    def save_state(
        self: Facade,
        output_dir: PathLike | None = None,
        safe_serialization: bool = True,
        *,
        asynchronous: bool = False,
        max_shard_size: int | str | None = None,
        **save_model_func_kwargs: Any,
    ) -> str | Save:
        """Collective. Writes a checkpoint of everything: models, optimizers, schedulers, positions of loaders, scaler,
        random states of every rank, registered objects. Where the state is replicated the main process may call it
        alone; the other ranks' random states are then not saved, which is logged.

        Args:
            output_dir: The folder; with automatic naming it may be left out.
            safe_serialization: Models as safetensors rather than by ``torch.save``.
            asynchronous: Return as soon as everything is copied to host memory, and write in the background.
            max_shard_size: Split a model into files of at most this size, as 5_000_000 or "5GB".
            **save_model_func_kwargs: For an engine that writes its own files.

        Returns:
            The folder; the running :class:`Save` where ``asynchronous``.

        Raises:
            CheckpointError: it was not written. What was complete before still is.
        """
        config = self.project_configuration
        where: dict[str, Any] = {"target": None if output_dir is None else Path(output_dir)}
        if output_dir is None:
            where = {"root": _root(config), "number": int(config.iteration), "limit": config.total_limit}
        request = checkpoint.request.SaveRequest(
            **where,
            safe=safe_serialization,
            max_shard_size=max_shard_size,
            asynchronous=asynchronous,
            each_node=bool(config.save_on_each_node),
            hooks=list(self._save_model_state_pre_hook.values()),  # type: ignore[attr-defined]
            engine_options=_engine_options(self, "save_state", save_model_func_kwargs),
        )
        save, number = self._saver.save(_subject(self), request)  # type: ignore[attr-defined]
        if number is not None:
            config.iteration = number + 1
        return save if asynchronous else save.path  # type: ignore[no-any-return]

    def load_state(
        self: Facade,
        input_dir: PathLike | None = None,
        load_kwargs: dict[str, Any] | None = None,
        *,
        strict: bool = True,
        verify: bool = True,
        match: str = "name",
        allow_pickle: bool = False,
        **load_model_func_kwargs: Any,
    ) -> LoadReport:
        """Collective. Restores a checkpoint, on any number of ranks. Objects are matched by name and shape.

        Args:
            input_dir: The folder; with automatic naming the newest complete checkpoint where left out.
            load_kwargs: ``{"weights_only": False}`` is the same as ``allow_pickle=True``.
            strict: Raise where checkpoint and objects differ, before anything is changed; else restore what fits.
            verify: Compare sizes and checksums first.
            match: "order" lets the order of ``prepare`` decide between objects that nothing else tells apart.
            allow_pickle: Unpickle files of older layouts, which runs whatever code they hold.
            **load_model_func_kwargs: For an engine that reads its own files.

        Returns:
            What was restored, what was missing, and what the checkpoint holds beside.

        Raises:
            CheckpointNotFoundError, CheckpointDamagedError, CheckpointMismatchError, PickleRefusedError: nothing was
                changed; the message names files and objects.
        """
        unpickle = _load_options(load_kwargs)
        if match not in ("name", "order"):
            raise ConfigError(f"match={match!r} is not one of 'name' and 'order'.")
        self._saver.settle()  # type: ignore[attr-defined]
        load_model_func_kwargs.pop("map_location", None)  # tensors always go where their parameters are
        request = checkpoint.request.LoadRequest(
            source=None if input_dir is None else Path(input_dir),
            root=None if input_dir is not None else _root(self.project_configuration, required=False),
            strict=strict,
            verify=verify,
            by_order=match == "order",
            allow_pickle=allow_pickle or unpickle,
            hooks=list(self._load_model_state_pre_hook.values()),  # type: ignore[attr-defined]
            engine_options=_engine_options(self, "load_state", load_model_func_kwargs),
        )
        loaded = checkpoint.load.load(_subject(self), self._saver.store, request)  # type: ignore[attr-defined]
        if loaded.step is not None:
            self.step = loaded.step
        if loaded.number is not None:
            self.project_configuration.iteration = max(loaded.number + 1, self.project_configuration.iteration)
        return loaded.report

    def resume(self: Facade, **load_options: Any) -> str | None:
        """Collective. Goes on from the newest complete checkpoint of automatic naming, if there is one.

        ``accelerate launch --resume`` may name another one, or "never". ``load_options`` are those of ``load_state``.

        Returns:
            The folder that was loaded; None where the run starts from the beginning.
        """
        asked = env.get("ACCELERATE_RESUME") or "auto"
        if asked.lower() in ("never", "no", "none", "false"):
            return None
        if asked.lower() != "auto":
            self.load_state(asked, **load_options)  # type: ignore[attr-defined]
            return asked
        root = _root(self.project_configuration)
        store = self._saver.store  # type: ignore[attr-defined]
        path = checkpoint.load.from_main(lambda: checkpoint.load.newest(store, root))
        if path is None:
            return None
        self.load_state(path, **load_options)  # type: ignore[attr-defined]
        return str(path)

    # Being asked to stop

    @property
    def should_stop(self) -> bool:
        """Collective. Whether the job was asked to stop: by SIGTERM or SIGUSR1 (or ACCELERATE_PREEMPTION_SIGNALS) on
        any rank since this was first read. Every rank gets the same answer at the same step."""
        self.stop_on()
        return self._stop.agreed()

    def stop_on(self, *signals: str) -> None:
        """Lets signals ask the job to stop from now on: those named, such as "SIGUSR2", or the usual ones."""
        self._stop.watch(checkpoint.preempt.signals_asked_for(signals or None))

    # Models and objects as files

    def get_state_dict(self: Facade, model: torch.nn.Module, unwrap: bool = True) -> Any:
        """Collective where the model is sharded. A model's whole state, as it was named before it was prepared.

        Args:
            model: A prepared model.
            unwrap: False for a model that is not prepared: its own ``state_dict()``.

        Returns:
            Tensors by name; where the model is sharded they are in main memory on rank 0, and nothing elsewhere.
        """
        if not unwrap:
            return model.state_dict()
        return self.strategy.state().full_state_dict(model, cpu=False)

    def save_model(
        self: Facade,
        model: torch.nn.Module,
        save_directory: PathLike,
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Collective. Writes a model so that ``from_pretrained`` and the like read it: one file, or shards with an
        index.

        Args:
            model: A prepared model.
            save_directory: The folder.
            max_shard_size: The most that one file may hold, as 5_000_000 or "5GB".
            safe_serialization: As safetensors rather than by ``torch.save``.
        """
        tensors = self.get_state_dict(model)  # type: ignore[attr-defined]
        checkpoint.files.write_model(
            tensors,
            save_directory,
            max_shard_size=max_shard_size,
            safe=safe_serialization,
            each_node=bool(self.project_configuration.save_on_each_node),
        )

    def save(self: Facade, obj: Any, f: Any, safe_serialization: bool = False) -> None:
        """Writes an object to a file once: on the main process, or that of every machine with ``save_on_each_node``.

        Args:
            obj: Anything ``torch.save`` takes.
            f: A path.
            safe_serialization: A dictionary of tensors, written as safetensors.
        """
        checkpoint.files.save(obj, f, bool(self.project_configuration.save_on_each_node), safe_serialization)


def _hooked(hooks: OrderedDict[int, Callable[..., Any]], hook: Callable[..., Any]) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def _root(config: Any, *, required: bool = True) -> Any:
    """The folder of numbered checkpoints."""
    if config.automatic_checkpoint_naming and config.project_dir is not None:
        return Path(config.project_dir) / checkpoint.layout.CHECKPOINTS
    if not required:
        return None
    raise ConfigError(
        "No folder was given, and there is no automatic naming to choose one. Pass the folder, or construct "
        "Accelerator(project_config=ProjectConfiguration(project_dir=…, automatic_checkpoint_naming=True))."
    )


def _load_options(given: dict[str, Any] | None) -> bool:
    """Whether ``load_kwargs`` ask for unpickling; ``map_location`` needs no asking."""
    options = dict(given or {})
    options.pop("map_location", None)
    unpickle = options.pop("weights_only", True) is False
    if options:
        name, value = next(iter(options.items()))
        raise MisplacedArgumentError(
            f"load_state() got load_kwargs={{{name!r}: {value!r}}}; it takes 'weights_only' and 'map_location' there. "
            "Other options are keywords of load_state itself."
        )
    return unpickle


def _engine_options(facade: Any, call: str, options: dict[str, Any]) -> dict[str, Any]:
    if options and not facade.strategy.state().engine:
        name, value = next(iter(options.items()))
        raise MisplacedArgumentError(
            f"{call}() got {name}={value!r}, which it does not take; other keywords are for engines that write their "
            f"own files, and strategy {facade.strategy.name!r} is none. See help(Accelerator.{call})."
        )
    return options


def _subject(facade: Any) -> Subject:
    identities: Identities = facade._identities
    identities.look(user_frame(sys._getframe(1)), [*_everything(facade)])
    return checkpoint.parts.Subject(
        models=list(facade._models),
        optimizers=list(facade._optimizers),
        schedulers=list(facade._schedulers),
        loaders=list(facade._dataloaders),
        customs=list(facade._custom_objects),
        scaler=facade.scaler,
        step=facade.step,
        adapter=facade.strategy.state(),
        names=identities.names,
        token=identities.token,
    )


def _everything(facade: Any) -> Iterable[Any]:
    for held in (facade._models, facade._optimizers, facade._schedulers, facade._dataloaders, facade._custom_objects):
        yield from held
