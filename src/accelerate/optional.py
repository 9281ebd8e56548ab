"""Which optional packages are there. Nothing is imported to find out, torch included.

:data:`PACKAGES` holds a row for each package whose module, distribution and requirement differ or that has a minimum
version; any other name stands for a package whose module and distribution are called the same. A package counts as
there when its module can be found *and* one of its distributions is installed: a folder that happens to be called
``wandb`` is not wandb.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from importlib import invalidate_caches, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from accelerate.errors import MissingPackageError

if TYPE_CHECKING:
    from packaging.version import Version

__all__ = [
    "PACKAGES",
    "Package",
    "available",
    "compare_versions",
    "deepspeed_required",
    "folder_of",
    "forget",
    "installed_version",
    "is_4bit_bnb_available",
    "is_8bit_bnb_available",
    "is_aim_available",
    "is_amdsmi_available",
    "is_bitsandbytes_multi_backend_available",
    "is_bnb_available",
    "is_boto3_available",
    "is_clearml_available",
    "is_comet_ml_available",
    "is_datasets_available",
    "is_deepspeed_available",
    "is_dvclive_available",
    "is_fp8_available",
    "is_import_timer_available",
    "is_lomo_available",
    "is_matplotlib_available",
    "is_megatron_lm_available",
    "is_mlflow_available",
    "is_msamp_available",
    "is_numpy_available",
    "is_pandas_available",
    "is_peft_available",
    "is_pippy_available",
    "is_pynvml_available",
    "is_pytest_available",
    "is_rich_available",
    "is_sagemaker_available",
    "is_schedulefree_available",
    "is_swanlab_available",
    "is_tensorboard_available",
    "is_timm_available",
    "is_torch_version",
    "is_torchao_available",
    "is_torchdata_available",
    "is_torchdata_stateful_dataloader_available",
    "is_torchvision_available",
    "is_tqdm_available",
    "is_trackio_available",
    "is_transformer_engine_available",
    "is_transformer_engine_mxfp8_available",
    "is_transformers_available",
    "is_triton_available",
    "is_wandb_available",
    "is_weights_only_available",
    "require",
    "torchao_required",
]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """How one optional package is recognised and installed.

    modules: any of these, dotted for a submodule. distributions: any of these; none for what ships inside another
    package. minimum: the oldest version that works here. install: what to give to pip.
    """

    modules: tuple[str, ...]
    distributions: tuple[str, ...]
    install: str
    minimum: str | None = None


def _row(*modules: str, dist: str | tuple[str, ...] = "", install: str = "", minimum: str | None = None) -> Package:
    names = (dist,) if isinstance(dist, str) else dist
    distributions = tuple(name or modules[0] for name in names)
    requirement = install or (distributions[0] if minimum is None else f"{distributions[0]}>={minimum}")
    return Package(modules=modules, distributions=distributions, install=requirement, minimum=minimum)


PACKAGES: dict[str, Package] = {
    "bitsandbytes": _row("bitsandbytes", minimum="0.39.0"),
    "comet_ml": _row("comet_ml", dist="comet-ml"),
    "deepspeed": _row("deepspeed", minimum="0.10.0"),
    "import_timer": _row("import_timer", dist="import-timer"),
    "lomo": _row("lomo_optim", dist="lomo-optim"),
    "megatron_lm": _row("megatron.core", dist=("megatron-core", "megatron-lm"), install="megatron-core"),
    "mlflow": _row("mlflow", dist=("mlflow", "mlflow-skinny")),
    "msamp": _row("msamp", dist=("ms-amp", "msamp"), install="git+https://github.com/Azure/MS-AMP"),
    "neuronx": _row("torch_neuronx", dist="torch-neuronx"),
    "pynvml": _row("pynvml", dist=("nvidia-ml-py", "pynvml")),
    "schedulefree": _row("schedulefree"),
    "sklearn": _row("sklearn", dist="scikit-learn"),
    "tensorboard": _row("tensorboard", "tensorboardX", dist=("tensorboard", "tensorboardX")),
    "torch_xla": _row("torch_xla"),
    "torchao": _row("torchao", minimum="0.6.1"),
    "torchdata": _row("torchdata"),
    "torchdata_stateful": _row("torchdata", minimum="0.8.0"),
    "transformer_engine": _row(
        "transformer_engine.pytorch",
        dist=("transformer-engine", "transformer_engine"),
        install="transformer-engine[pytorch]",
    ),
    "triton": _row("triton", dist=("triton", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu")),
}


def _package(name: str) -> Package:
    return PACKAGES.get(name) or _row(name)


def _found(module: str) -> bool:
    """Whether ``module`` could be imported; parents of a dotted name are located, not imported."""
    top, *below = module.split(".")
    if top in sys.modules and sys.modules[top] is None:
        return False  # someone forbade the import
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):  # ValueError: a module without a spec was put there by hand
        return top in sys.modules
    if spec is None:
        return False
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    for part in below:
        places = [place / part for place in places if (place / part).is_dir() or (place / f"{part}.py").is_file()]
    return not below or bool(places)


def folder_of(module: str) -> Path | None:
    """The folder of a package, found without importing it; None where it is not there."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None


@cache
def installed_version(name: str) -> str | None:
    """The version of the installed distribution of ``name`` (a key of the table or a distribution), or None."""
    for distribution in _package(name).distributions:
        try:
            found = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
        if found:
            return found
    return None


def available(name: str, min_version: str | None = None) -> bool:
    """Whether the optional package ``name`` is installed, at its minimum version or ``min_version`` at least.

    The answer is remembered; :func:`forget` makes the next call look again.
    """
    return _available(name, min_version)


@cache
def _available(name: str, min_version: str | None) -> bool:
    package = _package(name)
    if not any(_found(module) for module in package.modules):
        return False
    version = installed_version(name)
    if version is None:
        return False
    return all(_at_least(version, wanted) for wanted in (package.minimum, min_version) if wanted is not None)


def forget() -> None:
    """Makes the next question look at the machine again, as after an installation in a running notebook."""
    invalidate_caches()
    _available.cache_clear()
    installed_version.cache_clear()


def require(name: str, for_what: str, min_version: str | None = None) -> None:
    """Returns when ``name`` is installed.

    Raises:
        MissingPackageError: it is absent or too old; the message says what ``for_what`` needs and how to install it.
    """
    if available(name, min_version):
        return
    forget()
    if available(name, min_version):
        return
    package = _package(name)
    wanted = package.install if min_version is None else f"{package.distributions[0]}>={min_version}"
    found = installed_version(name)
    state = "not installed" if found is None else f"installed in version {found}, but too old or incomplete"
    quote = "'" if any(sign in wanted for sign in "<>=[") else ""
    raise MissingPackageError(
        f"{for_what} needs the package {package.distributions[0]!r}, which is {state}. "
        f"Install it: pip install {quote}{wanted}{quote}",
        name=package.modules[0],
    )


def _at_least(version: str, wanted: str) -> bool:
    from packaging.version import Version

    return Version(version) >= Version(wanted)


_OPERATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    ">=": lambda a, b: a >= b,
    ">": lambda a, b: a > b,
}


def compare_versions(library_or_version: str | Version, operation: str, requirement_version: str) -> bool:
    """Whether the version of an installed library (given by name), or a given version, meets a requirement.

    A local label such as ``+cpu`` counts only when the requirement names one, as in PEP 440.

    Raises:
        ValueError: ``operation`` is none of ``< <= == != >= >``.
        importlib.metadata.PackageNotFoundError: no such library is installed.
    """
    from packaging.version import Version

    if operation not in _OPERATIONS:
        raise ValueError(f"operation={operation!r} is not a comparison. Use one of {', '.join(_OPERATIONS)}.")
    version = library_or_version
    if isinstance(version, str):
        version = Version(metadata.version(version))
    wanted = Version(requirement_version)
    if wanted.local is None:
        version = Version(version.public)
    return _OPERATIONS[operation](version, wanted)


def is_torch_version(operation: str, version: str) -> bool:
    """Whether the torch in use meets a requirement, as ``is_torch_version(">=", "2.6")``. Does not import torch."""
    from packaging.version import Version

    loaded = sys.modules.get("torch")
    found = getattr(loaded, "__version__", None) or metadata.version("torch")
    return compare_versions(Version(str(found)), operation, version)


def _required(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    def decorate(func: Callable[P, R]) -> Callable[P, R]:
        @wraps(func)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            require(name, f"`{func.__qualname__}`")
            return func(*args, **kwargs)

        return checked

    return decorate


def deepspeed_required(func: Callable[P, R]) -> Callable[P, R]:
    """``func``, made to raise MissingPackageError at the call where DeepSpeed is not installed."""
    return _required("deepspeed")(func)


def torchao_required(func: Callable[P, R]) -> Callable[P, R]:
    """``func``, made to raise MissingPackageError at the call where torchao is not installed."""
    return _required("torchao")(func)


# ---- the public questions, one a package


def _question(name: str, row: str) -> Callable[[], bool]:
    def question() -> bool:
        return available(row)

    question.__name__ = question.__qualname__ = name
    question.__doc__ = f"Whether the package `{_package(row).distributions[0]}` is installed."
    return question


is_aim_available = _question("is_aim_available", "aim")
is_amdsmi_available = _question("is_amdsmi_available", "amdsmi")
is_boto3_available = _question("is_boto3_available", "boto3")
is_clearml_available = _question("is_clearml_available", "clearml")
is_comet_ml_available = _question("is_comet_ml_available", "comet_ml")
is_datasets_available = _question("is_datasets_available", "datasets")
is_deepspeed_available = _question("is_deepspeed_available", "deepspeed")
is_dvclive_available = _question("is_dvclive_available", "dvclive")
is_import_timer_available = _question("is_import_timer_available", "import_timer")
is_lomo_available = _question("is_lomo_available", "lomo")
is_matplotlib_available = _question("is_matplotlib_available", "matplotlib")
is_megatron_lm_available = _question("is_megatron_lm_available", "megatron_lm")
is_mlflow_available = _question("is_mlflow_available", "mlflow")
is_msamp_available = _question("is_msamp_available", "msamp")
is_numpy_available = _question("is_numpy_available", "numpy")
is_pandas_available = _question("is_pandas_available", "pandas")
is_peft_available = _question("is_peft_available", "peft")
is_pynvml_available = _question("is_pynvml_available", "pynvml")
is_pytest_available = _question("is_pytest_available", "pytest")
is_rich_available = _question("is_rich_available", "rich")
is_sagemaker_available = _question("is_sagemaker_available", "sagemaker")
is_schedulefree_available = _question("is_schedulefree_available", "schedulefree")
is_swanlab_available = _question("is_swanlab_available", "swanlab")
is_tensorboard_available = _question("is_tensorboard_available", "tensorboard")
is_timm_available = _question("is_timm_available", "timm")
is_torchao_available = _question("is_torchao_available", "torchao")
is_torchdata_available = _question("is_torchdata_available", "torchdata")
is_torchdata_stateful_dataloader_available = _question(
    "is_torchdata_stateful_dataloader_available", "torchdata_stateful"
)
is_torchvision_available = _question("is_torchvision_available", "torchvision")
is_tqdm_available = _question("is_tqdm_available", "tqdm")
is_trackio_available = _question("is_trackio_available", "trackio")
is_transformer_engine_available = _question("is_transformer_engine_available", "transformer_engine")
is_transformers_available = _question("is_transformers_available", "transformers")
is_triton_available = _question("is_triton_available", "triton")
is_wandb_available = _question("is_wandb_available", "wandb")


def is_bnb_available(min_version: str | None = None) -> bool:
    """Whether bitsandbytes is installed, at ``min_version`` at least."""
    return available("bitsandbytes", min_version)


def is_8bit_bnb_available() -> bool:
    """Whether the installed bitsandbytes has 8-bit layers."""
    return available("bitsandbytes")


def is_4bit_bnb_available() -> bool:
    """Whether the installed bitsandbytes has 4-bit layers."""
    return available("bitsandbytes")


def is_bitsandbytes_multi_backend_available() -> bool:
    """Whether the installed bitsandbytes runs on devices other than CUDA."""
    return available("bitsandbytes", "0.46.0")


def is_fp8_available() -> bool:
    """Whether any engine for 8-bit floating point training is installed: torchao, Transformer Engine or MS-AMP."""
    return available("torchao") or available("transformer_engine") or available("msamp")


def is_transformer_engine_mxfp8_available() -> bool:
    """Whether the installed Transformer Engine knows the MXFP8 block-scaled recipe."""
    return available("transformer_engine", "2.0.0")


def is_pippy_available() -> bool:
    """Whether torch has pipeline parallelism built in, which it has from 2.4 on."""
    return is_torch_version(">=", "2.4.0")


def is_weights_only_available() -> bool:
    """Whether ``torch.load`` takes ``weights_only`` with an allow-list, which it does from 2.4 on."""
    return is_torch_version(">=", "2.4.0")
