"""Every promised name is there, means the same on every path, and is called as promised."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from accelerate import optional, unbuilt
from accelerate.errors import NotBuiltError
from contract.differences import NOT_THERE_YET, ON_PURPOSE, UNBUILT
from contract.promised import API, SURFACE, entries, problems, resolve

MODULES = sorted(API)


@pytest.mark.parametrize("module", MODULES)
def test_names_are_there_and_keep_their_facts(module: str) -> None:
    found = []
    for name, facts in API[module].items():
        value = resolve(module, name)
        if unbuilt.capability_of(value) is None:
            found += [f"{name}: {problem}" for problem in problems(value, facts) if (name, problem) not in ON_PURPOSE]
    assert not found, "\n  " + "\n  ".join(found)


def test_differences_on_purpose_are_real() -> None:
    real = {(name, problem) for module, name, facts in entries() for problem in problems(resolve(module, name), facts)}
    assert set(ON_PURPOSE) - real == set(), "no longer different: take these out of the table"


def test_a_name_is_the_same_object_on_every_path() -> None:
    objects: dict[str, dict[str, object]] = {}
    for module, name, facts in entries():
        paths = objects.setdefault(name, {})
        paths[module] = resolve(module, name)
        if facts.get("home"):
            paths[facts["home"]] = resolve(facts["home"], name)
    several = {name: paths for name, paths in objects.items() if len({id(value) for value in paths.values()}) > 1}
    assert not several, several


def test_packages_list_what_they_promise() -> None:
    for module in ("accelerate", "accelerate.utils"):
        listed = set(dir(import_module(module)))
        assert set(API[module]) <= listed
        assert set(API[module]) <= set(import_module(module).__all__)


def test_names_that_do_not_exist_are_attribute_errors() -> None:
    for module in (
        "accelerate",
        "accelerate.utils",
        "accelerate.utils.imports",
        "accelerate.unbuilt",
        "accelerate.tracking",
    ):
        with pytest.raises(AttributeError, match="no attribute 'nothing_like_it'"):
            import_module(module).nothing_like_it  # noqa: B018
        with pytest.raises(ImportError):
            exec(f"from {module} import nothing_like_it")


def test_what_is_not_built_only_gets_less() -> None:
    assert set(unbuilt.PENDING) == UNBUILT, "take what is built now out of the list; nothing may be added"


@pytest.mark.parametrize("name", sorted(unbuilt.PENDING))
def test_what_is_not_built_says_so_when_it_is_used(name: str) -> None:
    value = getattr(unbuilt, name)
    assert value is getattr(unbuilt, name) and value.__name__ == name
    with pytest.raises(NotBuiltError, match=f"`{name}` was used, but .* is not built yet"):
        value(1, two=2)
    if isinstance(value, type):
        assert not isinstance(object(), value)
        with pytest.raises(NotBuiltError):
            type("Sub", (value,), {})()


def test_modules_that_others_use() -> None:
    for module in SURFACE["modules"]:
        import_module(module)


def test_names_that_others_import_or_replace() -> None:
    missing = set()
    for name in {*SURFACE["names"], *SURFACE["replaced"]}:
        module, _, attribute = name.rpartition(".")
        if attribute == "xm" and not optional.available("torch_xla"):
            continue  # torch_xla's own module, which others look for only where it is installed
        if not hasattr(import_module(module), attribute):
            missing.add(name)
    assert missing == NOT_THERE_YET, "what is there now leaves the table; nothing may be added"


def test_submodule_does_not_hide_the_name_it_shares() -> None:
    code = (
        "import accelerate.utils.tqdm, accelerate.utils, accelerate.progress\n"
        "from accelerate.utils import tqdm\n"
        "assert tqdm is accelerate.utils.tqdm is accelerate.progress.tqdm, tqdm\n"
        "import accelerate\n"
        "print(accelerate.hooks.ModelHook.__name__, accelerate.utils.modeling.__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ModelHook", "accelerate.utils.modeling"]


def test_names_that_need_no_torch_do_not_import_it() -> None:
    code = (
        "import sys\n"
        "from accelerate import DataLoaderConfiguration, DistributedType, ParallelismConfig, is_rich_available\n"
        "from accelerate.utils import DeepSpeedPlugin, ProjectConfiguration, is_wandb_available, str_to_bool, tqdm\n"
        "from accelerate.utils import FullyShardedDataParallelPlugin, MODEL_NAME, compare_versions, patch_environment\n"
        "from accelerate.utils.imports import is_deepspeed_available\n"
        "from accelerate.utils.versions import is_torch_version\n"
        "from accelerate.utils.constants import FSDP_SHARDING_STRATEGY\n"
        "from accelerate.logging import get_logger\n"
        "from accelerate.tracking import GeneralTracker, filter_trackers\n"
        "is_deepspeed_available(), is_torch_version('>=', '2.6'), get_logger('x')\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
