"""What would be started, for command lines and files as users write them. Nothing is started here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from accelerate.errors import LaunchError, NotBuiltError
from accelerate.launch.base import LaunchPlan
from accelerate.launch.command import WORKER
from accelerate.launch.hardware import Devices

Planned = Callable[..., LaunchPlan]
FOUR = Devices(type="cuda", count=4, visible_env="CUDA_VISIBLE_DEVICES")


def test_a_bare_launch_runs_in_place(planned: Planned) -> None:
    assert planned("train.py --lr 1e-3").as_dict() == {
        "kind": "inline",
        "argv": [sys.executable, WORKER, "train.py", "--lr", "1e-3"],
        "environment": {},
        "nprocs": 1,
        "world_size": 1,
        "machines": [1, 1],
        "machine_rank": 0,
        "device": "cpu",
        "rendezvous": None,
        "notices": [],
    }


def test_two_processes_golden(planned: Planned) -> None:
    assert planned("--num_processes 2 --mixed_precision bf16 -m pkg.train --x").as_dict() == {
        "kind": "torchrun",
        "argv": [sys.executable, "-u", WORKER, "-m", "pkg.train", "--x"],
        "environment": {
            "ACCELERATE_MIXED_PRECISION": "bf16",
            "ACCELERATE_NUM_PROCESSES": "2",
            "OMP_NUM_THREADS": "4",
        },
        "nprocs": 2,
        "world_size": 2,
        "machines": [1, 1],
        "machine_rank": 0,
        "device": "cpu",
        "rendezvous": {
            "backend": "c10d",
            "address": "127.0.0.1",
            "port": 0,
            "options": {"is_host": "true"},
            "local_address": "127.0.0.1",
            "run_id": "accelerate",
            "role": "default",
            "max_restarts": 0,
            "monitor_interval": 0.1,
            "tee": "0",
            "log_dir": None,
        },
        "notices": [],
    }


def test_the_same_job_gives_the_same_plan(planned: Planned) -> None:
    line = "--num_processes 4 --gpu_ids 0,1,2,3 --tee 3 --role worker train.py"
    assert planned(line, devices=FOUR).as_dict() == planned(line, devices=FOUR).as_dict()


# ---- what was asked and what happens


@pytest.mark.parametrize(
    ("words", "yaml"),
    [
        ("--cpu --num_processes 2 train.py", None),
        ("--multi_gpu --num_processes 2 train.py", None),
        ("train.py", "distributed_type: MULTI_CPU\nnum_processes: 2\n"),
        ("train.py", "distributed_type: MULTI_GPU\nnum_processes: 2\n"),
        ("train.py", "distributed_type: 'NO'\nnum_processes: 2\n"),
        ("--num_processes 2 train.py", "distributed_type: 'NO'\nnum_processes: 1\n"),
        ("--use_fsdp --num_processes 2 train.py", None),
        ("--use_deepspeed --num_processes 2 train.py", None),
    ],
)
def test_two_processes_asked_for_are_two_in_one_group(planned: Planned, words: str, yaml: str | None) -> None:
    plan = planned(words, yaml=yaml)
    assert (plan.kind, plan.nprocs, plan.world_size, plan.machines) == ("torchrun", 2, 2, (1, 1))
    assert plan.rendezvous is not None


@pytest.mark.parametrize(
    ("words", "yaml", "says"),
    [
        ("--multi_gpu --num_processes 2 train.py", None, "--multi_gpu was asked for"),
        ("--multi_gpu train.py", None, "one process on the CPU"),
        ("train.py", "distributed_type: MULTI_GPU\nnum_processes: 2\n", "config.yaml:1"),
        ("train.py", "distributed_type: MULTI_NPU\nnum_processes: 2\n", "no usable NPU"),
        ("--gpu_ids 0,1 --num_processes 2 train.py", None, "--gpu_ids 0,1 was asked for"),
        ("--use_fsdp --num_processes 2 train.py", None, "FSDP was asked for"),
    ],
)
def test_a_missing_accelerator_is_said_once(planned: Planned, words: str, yaml: str | None, says: str) -> None:
    notices = planned(words, yaml=yaml).notices
    assert len(notices) == 1
    assert says in notices[0] and "gloo" in notices[0]
    assert planned(words, yaml=yaml).environment["ACCELERATE_DEVICE_NOTICE"] == "true"


@pytest.mark.parametrize("words", ["--cpu --num_processes 2 train.py", "--num_processes 2 train.py", "train.py"])
def test_nothing_is_said_where_no_accelerator_was_asked_for(planned: Planned, words: str) -> None:
    assert planned(words).notices == ()
    assert "ACCELERATE_DEVICE_NOTICE" not in planned(words).environment


def test_cpu_reaches_the_processes(planned: Planned) -> None:
    assert planned("--cpu --num_processes 2 train.py").environment["ACCELERATE_USE_CPU"] == "true"
    yaml = "distributed_type: MULTI_CPU\nnum_processes: 2\n"
    assert planned("train.py", yaml=yaml, devices=FOUR).environment["ACCELERATE_USE_CPU"] == "true"
    assert planned("train.py", yaml=yaml, devices=FOUR).device == "cpu"


def test_one_process_for_each_device_by_default(planned: Planned) -> None:
    plan = planned("train.py", devices=FOUR)
    assert (plan.kind, plan.nprocs, plan.device, plan.notices) == ("torchrun", 4, "cuda", ())
    assert planned("--num_processes 1 train.py", devices=FOUR).kind == "inline"
    assert planned("--cpu train.py", devices=FOUR).world_size == 1
    assert planned("train.py", devices=FOUR, yaml="distributed_type: 'NO'\n").world_size == 1
    assert planned("train.py", yaml="num_processes: -1\n", devices=FOUR).world_size == 4
    two_machines = "--num_machines 2 --machine_rank 1 --main_process_ip 10.0.0.1 train.py"
    assert planned(two_machines, devices=FOUR).world_size == 8


def test_gpu_ids_choose_devices(planned: Planned) -> None:
    plan = planned("--gpu_ids 1,3 train.py", devices=FOUR)
    assert (plan.world_size, plan.environment["CUDA_VISIBLE_DEVICES"]) == (2, "1,3")
    assert planned("--gpu_ids all train.py", devices=FOUR).world_size == 4
    other = Devices(type="npu", count=2, visible_env="ASCEND_RT_VISIBLE_DEVICES")
    assert planned("--gpu_ids 1 train.py", devices=other).environment["ASCEND_RT_VISIBLE_DEVICES"] == "1"


@pytest.mark.parametrize(
    ("words", "devices", "environ", "says"),
    [
        ("--num_processes 0 train.py", None, {}, "at least one process"),
        ("--num_processes 8 train.py", FOUR, {}, "4 usable cuda devices"),
        ("--num_processes 3 --gpu_ids 0,1 train.py", FOUR, {}, "2 usable cuda devices"),
        ("--gpu_ids 0,0 train.py", FOUR, {}, "twice"),
        ("--gpu_ids 0,3 train.py", FOUR, {"CUDA_VISIBLE_DEVICES": "0,1"}, "does not let this job use 3"),
        ("--num_processes 3 --num_machines 2 --main_process_ip h train.py", None, {}, "multiple of 2"),
        ("--num_processes 2 --num_machines 2 train.py", None, {}, "--main_process_ip"),
        ("--num_processes 2 --num_machines 2 --machine_rank 2 --main_process_ip h train.py", None, {}, "0 to 1"),
        ("--num_processes 2 --max_restarts -1 train.py", None, {}, "--max_restarts"),
        ("--num_processes 2 --monitor_interval 0 train.py", None, {}, "--monitor_interval"),
        ("--num_processes 2 --tee 9 train.py", None, {}, "--tee 9"),
        ("--num_processes 2 --rdzv_conf timeout train.py", None, {}, "'timeout' is not of the form"),
        ("--num_processes 2 --num_cpu_threads_per_process 0 train.py", None, {}, "at least one thread"),
        ("--num_processes 2 -m --no_python train", None, {}, "--module and --no_python"),
        ("--engine torchrn --num_processes 2 train.py", None, {}, "Did you mean 'torchrun'"),
    ],
)
def test_settings_that_cannot_be_met_are_errors(
    planned: Planned, words: str, devices: Devices | None, environ: dict[str, str], says: str
) -> None:
    with pytest.raises(LaunchError, match=says):
        planned(words, devices=devices or Devices(), environ=environ)


@pytest.mark.parametrize(
    ("words", "yaml", "says"),
    [
        ("--use_megatron_lm --num_processes 2 train.py", None, "Megatron"),
        ("--tpu train.py", None, "TPU"),
        ("train.py", "distributed_type: XLA\nnum_processes: 8\n", "TPU"),
        ("train.py", "compute_environment: AMAZON_SAGEMAKER\nec2_instance_type: x\niam_role_name: y\n", "SageMaker"),
        ("--engine ray train.py", None, "Ray"),
    ],
)
def test_what_is_not_built_says_so(planned: Planned, words: str, yaml: str | None, says: str) -> None:
    with pytest.raises(NotBuiltError, match=says):
        planned(words, yaml=yaml)


def test_deepspeed_with_the_standard_launcher_is_planned(planned: Planned) -> None:
    line = "--use_deepspeed --deepspeed_multinode_launcher standard --num_processes 4 --num_machines 2 --machine_rank 1"
    plan = planned(f"{line} --main_process_ip 10.0.0.1 --zero_stage 3 train.py")
    assert (plan.nprocs, plan.world_size, plan.machine_rank) == (2, 4, 1)
    assert plan.environment["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert plan.environment["ACCELERATE_USE_DEEPSPEED"] == "true"


# ---- machines and meeting


def test_two_machines_have_one_process_each(planned: Planned) -> None:
    line = "--multi_gpu --num_processes 2 --num_machines 2 --main_process_ip 127.0.0.1 --main_process_port 4567"
    plans = [planned(f"{line} --machine_rank {rank} train.py") for rank in (0, 1)]
    for rank, plan in enumerate(plans):
        assert (plan.nprocs, plan.world_size, plan.machines, plan.machine_rank) == (1, 2, (2, 2), rank)
        assert plan.rendezvous is not None
        assert (plan.rendezvous.backend, plan.rendezvous.endpoint) == ("static", "127.0.0.1:4567")


def test_several_machines_agree_on_a_port_without_being_told(planned: Planned) -> None:
    plan = planned("--num_processes 4 --num_machines 2 --main_process_ip 10.0.0.1 train.py")
    assert plan.rendezvous is not None and plan.rendezvous.endpoint == "10.0.0.1:29500"


def test_one_machine_takes_the_port_it_is_told(planned: Planned) -> None:
    plan = planned("--num_processes 2 --main_process_port 4567 train.py")
    assert plan.rendezvous is not None
    assert (plan.rendezvous.backend, plan.rendezvous.endpoint) == ("static", "127.0.0.1:4567")


@pytest.mark.parametrize("rank", [0, 1])
def test_restarts_meet_anew_in_a_store_of_their_own(planned: Planned, rank: int) -> None:
    line = f"--num_processes 2 --num_machines 2 --machine_rank {rank} --main_process_ip 10.0.0.1 --max_restarts 3 x.py"
    plan = planned(line)
    assert plan.environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert plan.rendezvous is not None
    assert plan.rendezvous.backend == "c10d"
    assert plan.rendezvous.options == {"is_host": "true" if rank == 0 else "false"}
    assert plan.rendezvous.max_restarts == 3


def test_without_restarts_the_store_of_the_agent_is_shared(planned: Planned) -> None:
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in planned("--num_processes 2 train.py").environment


def test_elastic_machines(planned: Planned) -> None:
    plan = planned("--num_processes 8 --num_machines 2:4 --main_process_ip 10.0.0.1 train.py")
    assert (plan.machines, plan.nprocs) == ((2, 4), 2)
    assert plan.rendezvous is not None and plan.rendezvous.backend == "c10d"
    assert "is_host" not in plan.rendezvous.options


def test_meeting_settings_are_passed_on(planned: Planned) -> None:
    plan = planned(
        "--num_processes 2 --rdzv_backend etcd-v2 --rdzv_conf timeout=60,ttl=5 --main_process_ip h "
        "--main_process_port 2379 --role r --tee 0:3,1:1 --log_dir logs --monitor_interval 1.5 train.py"
    )
    meeting = plan.rendezvous
    assert meeting is not None
    assert (meeting.backend, meeting.endpoint) == ("etcd-v2", "h:2379")
    assert meeting.options == {"timeout": "60", "ttl": "5"}
    assert (meeting.role, meeting.tee, meeting.log_dir, meeting.monitor_interval) == ("r", "0:3,1:1", "logs", 1.5)


def test_an_ipv6_address_is_an_endpoint(planned: Planned) -> None:
    plan = planned("--num_processes 2 --num_machines 2 --main_process_ip fd00::1 --main_process_port 7 train.py")
    assert plan.rendezvous is not None and plan.rendezvous.endpoint == "[fd00::1]:7"


# ---- threads and programs


def test_threads_are_shared_out(planned: Planned) -> None:
    threads = "OMP_NUM_THREADS"
    assert planned("--num_processes 2 train.py").environment[threads] == "4"
    assert planned("--num_processes 16 train.py").environment[threads] == "1"
    assert planned("--num_processes 2 --num_cpu_threads_per_process 3 train.py").environment[threads] == "3"
    assert planned("--num_processes 2 train.py", environ={threads: "5"}).environment[threads] == "5"
    assert threads not in planned("train.py").environment


def test_a_program_of_its_own_runs_without_python(planned: Planned) -> None:
    assert planned("--num_processes 2 --no_python ./run.sh a").argv == ("./run.sh", "a")
    assert planned("--no_python ./run.sh a").argv == ("./run.sh", "a")


def test_the_engine_can_be_named(planned: Planned) -> None:
    assert planned("--engine torchrun --num_processes 1 train.py").kind == "torchrun"
    assert planned("--engine mpi --num_processes 2 train.py").kind == "mpi"


def test_description_names_what_matters(planned: Planned) -> None:
    plan = planned("--num_processes 4 --num_machines 2 --machine_rank 1 --main_process_ip h train.py")
    assert plan.description.startswith("4 processes on cpu, 2 on each of 2 machines, this is number 1, started by")
    one = replace(planned("train.py"), argv=("python", "a b.py"))
    assert one.description == "1 process on cpu, started by inline: python 'a b.py'"
