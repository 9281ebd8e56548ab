"""What is measured, and how much it may cost."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Interpreter, Ran, Samples, take_turns

__all__ = ["CASES", "Case", "Row"]

WORKERS = Path(__file__).parent / "workers"
EMPTY = str(WORKERS / "empty.py")

Commands = dict[tuple[Interpreter, str], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One implementation in one case.

    ``cost`` is the ratio subject / baseline, or where ``unit`` is "ms" their difference in milliseconds. ``best`` is
    the same of the smallest values. Only ``cost`` is held against ``limit``.
    """

    case: str
    what: str
    implementation: str
    baseline: float
    subject: float
    cost: float
    best: float
    limit: float
    unit: str

    @property
    def holds(self) -> bool:
        """Whether the cost is within the limit."""
        return self.cost <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Something to measure: ``measure(interpreters, repeats)`` gives a row for each interpreter or more."""

    name: str
    about: str
    measure: Callable[[str, list[Interpreter], int], list[Row]]
    repeats: int


def _row(
    case: str, what: str, who: Interpreter, baseline: Samples, subject: Samples, limit: float, unit: str = "x"
) -> Row:
    def cost(base: float, own: float) -> float:
        return own / base if unit == "x" else (own - base) * 1000

    return Row(
        case=case,
        what=what,
        implementation=who.name,
        baseline=baseline.median,
        subject=subject.median,
        cost=cost(baseline.median, subject.median),
        best=cost(baseline.best, subject.best),
        limit=limit,
        unit=unit,
    )


def _worker(
    name: str,
    interpreters: list[Interpreter],
    repeats: int,
    *,
    file: str,
    arguments: Sequence[str] = (),
    ranks: int = 1,
    pairs: Sequence[tuple[str, str, str, float]],
) -> list[Row]:
    """A program that takes its own times, baseline and subject in turns, and prints them; its runs are put together.

    ``pairs`` holds, for each row, its description, the two keys of the program's report, and the limit.
    """
    commands: Commands = {}
    for who in interpreters:
        start = [who.python]
        if ranks > 1:
            start += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
        commands[who, file] = [*start, str(WORKERS / file), *arguments]
    rows = []
    for who, runs in take_turns(commands, repeats, warmup=0).items():
        reports = [ran.data() for ran in runs[file]]
        for what, base, own, limit in pairs:
            baseline = Samples([value for report in reports for value in report[base]])
            subject = Samples([value for report in reports for value in report[own]])
            rows.append(_row(name, what, who, baseline, subject, limit))
    return rows


def _cpu(runs: list[Ran]) -> Samples:
    return Samples([ran.cpu for ran in runs])


def _wall(runs: list[Ran]) -> Samples:
    return Samples([ran.wall for ran in runs])


def _launch(who: Interpreter, processes: int, script: str) -> list[str]:
    # Everything is given, so that no configuration file of this machine has a say.
    given = {"num_processes": processes, "num_machines": 1, "mixed_precision": "no", "dynamo_backend": "no"}
    flags = [text for name, value in given.items() for text in (f"--{name}", str(value))]
    return [who.script("accelerate"), "launch", "--cpu", *flags, script]


def _imports(name: str, interpreters: list[Interpreter], repeats: int) -> list[Row]:
    commands: Commands = {}
    for who in interpreters:
        commands[who, "nothing"] = [who.python, "-c", "pass"]
        commands[who, "package"] = [who.python, "-c", "import accelerate"]
        commands[who, "class"] = [who.python, str(WORKERS / "imports.py")]
    rows = []
    for who, runs in take_turns(commands, repeats).items():
        nothing, package = _cpu(runs["nothing"]), _cpu(runs["package"])
        rows.append(_row(name, "import accelerate over nothing", who, nothing, package, 60, "ms"))
        # Within one process, because torch's own time varies by more than what is added to it.
        added = [ran.data()["both"][0] - ran.data()["torch"][0] for ran in runs["class"]]
        rows.append(_row(name, "Accelerator over import torch", who, Samples([0.0]), Samples(added), 150, "ms"))
    return rows


def _help(name: str, interpreters: list[Interpreter], repeats: int) -> list[Row]:
    commands: Commands = {(who, "help"): [who.script("accelerate"), "--help"] for who in interpreters}
    return [
        _row(name, "accelerate --help, processor time", who, Samples([0.0]), _cpu(runs["help"]), 250, "ms")
        for who, runs in take_turns(commands, repeats).items()
    ]


def _launch_empty(name: str, interpreters: list[Interpreter], repeats: int) -> list[Row]:
    commands: Commands = {}
    for who in interpreters:
        commands[who, "python"] = [who.python, EMPTY]
        commands[who, "launch"] = _launch(who, 1, EMPTY)
    return [
        _row(name, "launch of an empty script over python", who, _cpu(runs["python"]), _cpu(runs["launch"]), 150, "ms")
        for who, runs in take_turns(commands, repeats).items()
    ]


def _launch_two(name: str, interpreters: list[Interpreter], repeats: int) -> list[Row]:
    script = str(WORKERS / "group.py")
    commands: Commands = {}
    for who in interpreters:
        commands[who, "torchrun"] = [who.script("torchrun"), "--standalone", "--nproc_per_node=2", script]
        commands[who, "launch"] = _launch(who, 2, script)
    rows = []
    for who, runs in take_turns(commands, repeats).items():
        raw, own = runs["torchrun"], runs["launch"]
        rows.append(_row(name, "two processes over torchrun, clock", who, _wall(raw), _wall(own), 1.05))
        rows.append(_row(name, "two processes over torchrun, processor time", who, _cpu(raw), _cpu(own), 1.05))
    return rows


def _fsdp2_memory(name: str, interpreters: list[Interpreter], repeats: int) -> list[Row]:
    commands: Commands = {}
    for who in interpreters:
        start = [who.python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
        for how in ("by_hand", "prepared"):
            commands[who, how] = [*start, str(WORKERS / "fsdp2.py"), how]
    rows = []
    for who, runs in take_turns(commands, repeats, warmup=0).items():
        by_hand, prepared = (
            Samples([value for ran in runs[how] for value in ran.data()["peak"]]) for how in ("by_hand", "prepared")
        )
        rows.append(_row(name, "peak memory of a prepared FSDP2 step over fully_shard", who, by_hand, prepared, 1.03))
    return rows


def _case(name: str, about: str, measure: Callable[[str, list[Interpreter], int], list[Row]], repeats: int) -> Case:
    return Case(name=name, about=about, measure=measure, repeats=repeats)


_LOADING = [
    ("load_state over torch.load and load_state_dict", "torch_load", "load", 0.6),
    ("the same without verification", "torch_load", "load_unverified", 0.45),
]

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        _case(
            "loop_single",
            "a training loop on a tiny network, one process",
            functools.partial(
                _worker,
                file="loop.py",
                pairs=[
                    ("prepared loop over plain loop", "plain/cpu", "prepared/cpu", 1.10),
                    ("with accumulate() and clipping", "plain_clip/cpu", "prepared_clip/cpu", 1.15),
                ],
            ),
            3,
        ),
        _case(
            "loop_ddp",
            "the same on two processes",
            functools.partial(
                _worker,
                file="loop.py",
                ranks=2,
                pairs=[
                    ("prepared loop over raw DDP", "plain", "prepared", 1.05),
                    ("the same, processor time", "plain/cpu", "prepared/cpu", 1.05),
                ],
            ),
            3,
        ),
        _case(
            "loader",
            "iterating a loader of nested batches",
            functools.partial(
                _worker, file="loader.py", pairs=[("prepared loader over plain", "plain/cpu", "prepared/cpu", 1.08)]
            ),
            3,
        ),
        _case(
            "gather",
            "gathering what a metric needs, two processes",
            functools.partial(
                _worker,
                file="gather.py",
                ranks=2,
                pairs=[
                    ("gather_for_metrics of two tensors over two all_gathers", "plain", "prepared", 1.5),
                    ("the same, processor time", "plain/cpu", "prepared/cpu", 1.5),
                ],
            ),
            3,
        ),
        _case(
            "step_fsdp2",
            "a step of a transformer sharded by FSDP2 over two processes",
            functools.partial(
                _worker,
                file="fsdp2.py",
                ranks=2,
                pairs=[
                    ("prepared step over fully_shard by hand", "by_hand", "prepared", 1.03),
                    ("the same, processor time", "by_hand/cpu", "prepared/cpu", 1.03),
                ],
            ),
            3,
        ),
        _case("memory_fsdp2", "peak memory of the same", _fsdp2_memory, 3),
        _case(
            "checkpoint_save",
            "saving 60 million parameters with AdamW, without syncs",
            functools.partial(
                _worker, file="checkpoint.py", pairs=[("save_state over torch.save", "torch_save", "save", 0.6)]
            ),
            1,
        ),
        _case(
            "checkpoint_load",
            "loading them, once in the life of a process",
            functools.partial(_worker, file="checkpoint.py", arguments=["load"], pairs=_LOADING),
            1,
        ),
        _case(
            "checkpoint_again",
            "loading them over and over in one process, where torch.load finds its memory again",
            functools.partial(_worker, file="checkpoint.py", arguments=["again"], pairs=_LOADING),
            1,
        ),
        _case(
            "checkpoint_durable",
            "the same save, both sides synced to the disk",
            functools.partial(
                _worker,
                file="checkpoint.py",
                arguments=["durable"],
                pairs=[("save_state over torch.save, synced", "torch_save", "save", 1.0)],
            ),
            1,
        ),
        _case(
            "checkpoint_async",
            "a save in the background",
            functools.partial(
                _worker,
                file="checkpoint_async.py",
                pairs=[("what the loop waits over a whole save", "synchronous", "blocking", 0.2)],
            ),
            1,
        ),
        _case(
            "checkpoint_memory",
            "memory that a save adds",
            functools.partial(
                _worker,
                file="checkpoint_async.py",
                arguments=["peak"],
                pairs=[("peak over the checkpoint's size", "all", "peak", 0.05)],
            ),
            1,
        ),
        _case("import_time", "importing the package, and its main class", _imports, 7),
        _case("cli_help", "accelerate --help", _help, 5),
        _case("launch_empty", "accelerate launch of an empty script", _launch_empty, 5),
        _case("launch_two", "accelerate launch of two processes that form a group", _launch_two, 3),
    )
}
