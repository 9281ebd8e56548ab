"""The questionnaire: only what the answers so far and this machine make relevant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from accelerate.cli.prompt import Prompt, TerminalPrompt
from accelerate.config.assign import namespace_of
from accelerate.config.fields import Setting
from accelerate.config.kinds import BOOLEAN
from accelerate.config.machine import DISTRIBUTED_WORDS
from accelerate.config.resolve import resolve
from accelerate.config.run import RunConfig, setting_at
from accelerate.env import encode
from accelerate.launch.hardware import Devices

__all__ = ["Answers", "ask"]

_DEVICE_NAMES = {"cuda": "GPUs", "xpu": "Intel GPUs", "mps": "the GPU of this Mac"}


@dataclass(slots=True)
class Answers:
    """What was answered, by setting, and who answers."""

    prompt: Prompt
    devices: Devices
    said: dict[str, str] = field(default_factory=dict)

    def put(self, path: str, value: Any) -> None:
        """Sets a setting without a question."""
        self.said[path] = encode(value)

    def get(self, path: str) -> Any:
        """The value of a setting as answered, or its default."""
        item = setting_at(path)
        return item.read(self.said[path]) if path in self.said else item.option.default

    def ask(self, path: str, default: Any = None, *, choices: Sequence[str] | None = None) -> Any:
        """Asks for one setting in the way its kind needs; an empty answer leaves it unsaid."""
        item = setting_at(path)
        usual = item.option.default if default is None else default
        question = item.option.ask or f"{item.option.help.rstrip('.')}?"
        if item.option.kind is BOOLEAN and not item.option.choices:
            self.put(path, self.prompt.confirm(question, bool(usual)))
        elif choices or item.option.choices:
            words = list(choices or item.option.choices)
            self.put(path, self.prompt.select(question, [(word, word) for word in words], encode(usual or words[0])))
        else:
            text = self.prompt.text(question, "" if usual is None else encode(usual), _checker(item))
            if text:
                self.said[path] = text
        return self.get(path)


def _checker(item: Setting) -> Callable[[str], str | None]:
    def check(text: str) -> str | None:
        if not text:
            return None
        try:
            item.read(text)
        except ValueError as error:
            return f"{error}."
        return None

    return check


def ask(detected: RunConfig, devices: Devices | None = None, prompt: Prompt | None = None) -> RunConfig | None:
    """The configuration that the answers make, or None where the user left with Ctrl-C or Ctrl-D.

    ``detected`` is what the machine has; its values are the defaults.
    """
    answers = Answers(prompt=prompt or TerminalPrompt(), devices=devices or Devices())
    try:
        where = answers.prompt.select(
            "Where does the job run?",
            [("LOCAL_MACHINE", "My own machines"), ("AMAZON_SAGEMAKER", "Amazon SageMaker")],
            "LOCAL_MACHINE",
        )
        answers.put("compute_environment", where)
        if where == "AMAZON_SAGEMAKER":
            _sagemaker(answers)
        else:
            _own_machines(answers, detected)
    except (KeyboardInterrupt, EOFError):
        return None
    return resolve(namespace_of(f"{path}={value}" for path, value in answers.said.items()), {}).config


def _sagemaker(answers: Answers) -> None:
    answers.ask("sagemaker.profile")
    answers.ask("sagemaker.region")
    answers.ask("sagemaker.iam_role_name")
    answers.ask("sagemaker.ec2_instance_type", "ml.p3.2xlarge")
    answers.ask("num_machines")
    _compilation(answers)
    answers.ask("mixed_precision", "no", choices=("no", "fp16", "bf16"))


def _own_machines(answers: Answers, detected: RunConfig) -> None:
    kind = _device(answers)
    machines = answers.ask("num_machines", 1)
    if machines != 1:
        _several_machines(answers)
    per_machine = answers.devices.count or detected.num_processes or 1
    least = machines if isinstance(machines, int) else machines[1]
    if kind != "mps":
        answers.ask("num_processes", per_machine * least)
    several = answers.get("num_processes") not in (None, 1)
    if kind == "device" and machines == 1:
        answers.ask("gpu_ids", "all")
    if kind == "cpu" and several:
        answers.ask("mpi.hostfile")
    if kind == "tpu":
        _tpu(answers)
    _compilation(answers)
    if kind in ("cpu", "device"):
        _strategy(answers, several)
    _precision(answers, kind)
    if kind == "device" and answers.devices.type == "cuda":
        answers.ask("enable_cpu_affinity", False)
    if several:
        answers.ask("debug", False)


def _device(answers: Answers) -> str:
    found = answers.devices
    name = _DEVICE_NAMES.get(found.type, f"{found.type} devices")
    choices = [
        ("cpu", "CPU only"),
        ("device", "GPUs or other accelerators"),
        ("tpu", "TPU"),
        ("mps", "Apple GPU (MPS)"),
    ]
    usual = "cpu"
    if found.type == "mps":
        usual = "mps"
    elif found.count:
        choices[1] = ("device", f"{name} (this machine has {found.count})")
        usual = "device"
    kind = answers.prompt.select("Which devices does the job use?", choices, usual)
    if kind == "cpu":
        answers.put("cpu", True)
    elif kind == "tpu":
        answers.put("tpu", True)
    return kind


def _several_machines(answers: Answers) -> None:
    answers.ask("machine_rank", 0)
    answers.ask("main_process_ip")
    answers.ask("main_process_port", 29500)
    if not answers.ask("same_network", True):
        answers.ask("rdzv_backend", "static")


def _tpu(answers: Answers) -> None:
    answers.ask("tpu_settings.main_training_function")
    answers.ask("tpu_settings.downcast_bf16")
    if answers.ask("tpu_settings.use_cluster"):
        answers.ask("tpu_settings.name")
        answers.ask("tpu_settings.zone")
        answers.ask("tpu_settings.use_sudo")


def _compilation(answers: Answers) -> None:
    if not answers.prompt.confirm("Compile models with torch.compile?", False):
        return
    answers.ask("dynamo.backend", "inductor")
    answers.ask("dynamo.mode")
    answers.ask("dynamo.use_fullgraph")
    answers.ask("dynamo.use_dynamic")
    answers.ask("dynamo.use_regional_compilation")


def _strategy(answers: Answers, several: bool) -> None:
    choices = [("plain", "Each process holds the whole model (data parallel)" if several else "One process")]
    choices += [("fsdp", "Fully sharded (FSDP)"), ("deepspeed", "DeepSpeed ZeRO")]
    if not answers.get("cpu"):
        choices.append(("megatron", "Megatron-LM"))
    chosen = answers.prompt.select("How is the model spread over the processes?", choices, "plain")
    if chosen == "fsdp":
        answers.put("use_fsdp", True)
        _fsdp(answers)
    elif chosen == "deepspeed":
        answers.put("use_deepspeed", True)
        _deepspeed(answers)
    elif chosen == "megatron":
        answers.put("use_megatron_lm", True)
        for name in ("tp_degree", "pp_degree", "num_micro_batches", "sequence_parallelism"):
            answers.ask(f"megatron.{name}", 1 if name == "num_micro_batches" else None)
        answers.ask("megatron.recompute_activations")
        answers.ask("megatron.use_distributed_optimizer")
        answers.ask("megatron.gradient_clipping")
    elif several and not answers.get("cpu"):
        answers.put("multi_gpu", True)
        answers.put("distributed_type", DISTRIBUTED_WORDS.get(answers.devices.type, "MULTI_GPU"))
    if several and chosen in ("plain", "fsdp") and answers.ask("use_parallelism_config", False):
        for axis in ("dp_replicate", "dp_shard", "tp", "cp"):
            answers.ask(f"parallelism.{axis}_size")
        if answers.get("parallelism.cp_size") > 1:
            answers.ask("parallelism.cp_comm_strategy")
        else:
            answers.ask("parallelism.sp_size")


def _fsdp(answers: Answers) -> None:
    version = answers.ask("fsdp.version", "2")
    if version == 1:
        answers.ask("fsdp.sharding_strategy", "FULL_SHARD")
    else:
        answers.ask("fsdp.reshard_after_forward", True)
    answers.ask("fsdp.offload_params", False)
    policy = answers.ask("fsdp.auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
    if policy == "TRANSFORMER_BASED_WRAP":
        answers.ask("fsdp.transformer_layer_cls_to_wrap")
    elif policy == "SIZE_BASED_WRAP":
        answers.ask("fsdp.min_num_params", 100_000_000)
    if version == 1:
        answers.ask("fsdp.backward_prefetch", "BACKWARD_PRE")
        answers.ask("fsdp.forward_prefetch", False)
        answers.ask("fsdp.use_orig_params", True)
    kinds = ("SHARDED_STATE_DICT", "FULL_STATE_DICT", *(("LOCAL_STATE_DICT",) if version == 1 else ()))
    answers.ask("fsdp.state_dict_type", "SHARDED_STATE_DICT", choices=kinds)
    loading = answers.ask("fsdp.cpu_ram_efficient_loading", True)
    if version == 1:
        if loading:
            answers.put("fsdp.sync_module_states", True)
        else:
            answers.ask("fsdp.sync_module_states", True)
    answers.ask("fsdp.activation_checkpointing", False)


def _deepspeed(answers: Answers) -> None:
    if not answers.ask("deepspeed.deepspeed_config_file"):
        stage = answers.ask("deepspeed.zero_stage", 2)
        if stage >= 2 and answers.ask("deepspeed.offload_optimizer_device", "none") == "nvme":
            answers.ask("deepspeed.offload_optimizer_nvme_path")
        if stage == 3:
            if answers.ask("deepspeed.offload_param_device", "none") == "nvme":
                answers.ask("deepspeed.offload_param_nvme_path")
            answers.ask("deepspeed.zero3_save_16bit_model", True)
        answers.ask("gradient_accumulation_steps", 1)
        answers.ask("gradient_clipping")
        if stage == 3:
            answers.ask("deepspeed.zero3_init_flag", True)
    if answers.get("num_machines") != 1 and answers.ask("deepspeed.deepspeed_multinode_launcher", "pdsh") != "standard":
        answers.ask("deepspeed.deepspeed_hostfile")


def _precision(answers: Answers, kind: str) -> None:
    words = ("no", "bf16", "fp16", "fp8") if kind == "device" else ("no", "bf16", "fp16")
    if answers.ask("mixed_precision", "no", choices=words) != "fp8":
        return
    backend = answers.ask("fp8.backend", "ao")
    if backend == "te":
        for name in ("format", "margin", "interval", "amax_history_len", "amax_compute_algo"):
            answers.ask(f"fp8.{name}")
        answers.ask("fp8.use_autocast_during_eval")
    elif backend == "msamp":
        answers.ask("fp8.opt_level")
