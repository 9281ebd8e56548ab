"""How many processes a job has, on which devices of which machines, and where that differs from what was asked."""

from __future__ import annotations

from dataclasses import dataclass

from accelerate.errors import LaunchError
from accelerate.launch.base import Job

__all__ = ["Shape", "base_environment", "shape_of"]

# The device that a word of `distributed_type` asks for. Words that name a strategy ask for none.
_DEVICE_OF = {
    "MULTI_CPU": "cpu",
    "MULTI_GPU": "GPU",
    "MULTI_NPU": "NPU",
    "MULTI_MLU": "MLU",
    "MULTI_MUSA": "MUSA",
    "MULTI_SDAA": "SDAA",
    "MULTI_XPU": "XPU",
    "MULTI_HPU": "HPU",
    "MULTI_NEURON": "Neuron",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The processes of a job: in all, on this machine, on which device; ``visible`` are the chosen device numbers."""

    world_size: int
    nprocs: int
    machines: tuple[int, int]
    machine_rank: int
    device: str
    visible: tuple[str, ...] | None
    notices: tuple[str, ...]


def shape_of(job: Job) -> Shape:
    """The processes that ``job`` asks for, as this machine can have them.

    Raises:
        LaunchError: the numbers do not fit each other or the machine.
    """
    config = job.config
    least, most = config.machine_range
    if least < 1:
        raise LaunchError(f"--num_machines {config.num_machines} was asked for. A job has at least one machine.")
    if most > 1 and not 0 <= config.machine_rank < most:
        raise LaunchError(
            f"--machine_rank {config.machine_rank} was asked for, but a job on {most} machines has machines "
            f"0 to {most - 1}."
        )
    visible = _chosen(job)
    on_cpu = config.cpu or _DEVICE_OF.get(config.distributed_type or "") == "cpu"
    there = 0 if on_cpu or not job.devices.count else (len(visible) if visible else job.devices.count)
    asked = config.num_processes
    if asked is not None and asked < 1 and asked != -1:
        raise LaunchError(f"--num_processes {asked} was asked for. A job has at least one process.")
    alone = config.distributed_type == "NO" and "distributed_type" in job.given
    total = asked if asked is not None and asked > 0 else most * (1 if alone else max(there, 1))
    if total % most:
        raise LaunchError(
            f"--num_processes {total} on --num_machines {most} was asked for. --num_processes counts the processes of "
            f"all machines together, so it has to be a multiple of {most}, for example {most * max(1, total // most)}."
        )
    here = total // most
    if there and here > there:
        raise LaunchError(
            f"{here} processes on this machine were asked for (--num_processes {total}), but it has {there} usable "
            f"{job.devices.type} device{'s' * (there > 1)}. Ask for {there * most} at the most, or add --cpu."
        )
    device = job.devices.type if there else "cpu"
    return Shape(
        world_size=total,
        nprocs=here,
        machines=(least, most),
        machine_rank=config.machine_rank if most > 1 else 0,
        device=device,
        visible=visible,
        notices=() if on_cpu or there else _missing_device(job, total),
    )


def _chosen(job: Job) -> tuple[str, ...] | None:
    """The numbers in ``gpu_ids``; None where all devices are meant."""
    text = job.config.gpu_ids
    if text is None or text.strip().lower() in ("", "all"):
        return None
    chosen = tuple(word.strip() for word in text.split(",") if word.strip())
    if len(set(chosen)) != len(chosen):
        raise LaunchError(f"--gpu_ids {text} names a device twice.")
    variable = job.devices.visible_env
    allowed = job.environ.get(variable) if variable else None
    outside = [word for word in chosen if allowed is not None and word not in allowed.replace(" ", "").split(",")]
    if outside and job.devices.count:
        raise LaunchError(
            f"--gpu_ids {text} was asked for, but {variable}={allowed} does not let this job use {', '.join(outside)}."
        )
    return chosen


def _missing_device(job: Job, total: int) -> tuple[str, ...]:
    """The notice that a job which wants accelerators runs without, or nothing where none were asked for."""
    config = job.config
    word = config.distributed_type or ""
    if word in _DEVICE_OF:
        asked, kind = f"distributed_type {word} ({job.given.get('distributed_type', 'default')})", _DEVICE_OF[word]
    elif config.multi_gpu:
        asked, kind = job.given.get("multi_gpu", "--multi_gpu"), "GPU"
    elif config.gpu_ids not in (None, "", "all"):
        asked, kind = f"--gpu_ids {config.gpu_ids}", "GPU"
    elif config.use_fsdp or config.use_deepspeed:
        asked, kind = ("FSDP" if config.use_fsdp else "DeepSpeed"), "accelerator"
    else:
        return ()
    why = f" ({job.devices.why_none})" if job.devices.why_none else ""
    many = f"{total} processes" if total > 1 else "one process"
    return (
        f"{asked} was asked for, but this machine shows no usable {kind}{why}. "
        f"The job runs {many} on the CPU with gloo.",
    )


def base_environment(job: Job, shape: Shape) -> dict[str, str | None]:
    """What every process of the job finds in its environment, whatever starts it."""
    values: dict[str, str | None] = dict(job.environment)
    if _DEVICE_OF.get(job.config.distributed_type or "") == "cpu":
        values["ACCELERATE_USE_CPU"] = "true"
    if shape.notices:
        values["ACCELERATE_DEVICE_NOTICE"] = "true"  # said by the launcher, so that the ranks need not say it again
    if shape.visible is not None:
        values[job.devices.visible_env or "CUDA_VISIBLE_DEVICES"] = ",".join(shape.visible)
    threads = job.config.num_cpu_threads_per_process
    if threads is not None and threads < 1:
        raise LaunchError(f"--num_cpu_threads_per_process {threads} was asked for. A process has at least one thread.")
    if threads is not None:
        values["OMP_NUM_THREADS"] = str(threads)
    elif shape.nprocs > 1 and not job.environ.get("OMP_NUM_THREADS"):
        # Left alone, every process would take a thread for each core of the machine.
        values["OMP_NUM_THREADS"] = str(max(1, job.cores // shape.nprocs))
    return values
