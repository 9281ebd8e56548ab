"""Settings of Amazon SageMaker jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from accelerate.config.fields import Section, option
from accelerate.config.kinds import MAPPING

__all__ = ["SageMakerSection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SageMakerSection:
    """What a file with ``compute_environment: AMAZON_SAGEMAKER`` says, and the two credentials as flags."""

    SECTION: ClassVar[Section] = Section(
        name="sagemaker",
        title="Amazon SageMaker",
        about="In force with `compute_environment: AMAZON_SAGEMAKER` in a file.",
    )

    aws_access_key_id: str | None = option(
        None,
        flag="--aws_access_key_id",
        yaml=None,
        help="Access key; better kept in a profile.",
    )
    aws_secret_access_key: str | None = option(
        None,
        flag="--aws_secret_access_key",
        yaml=None,
        help="Secret key; better kept in a profile.",
    )
    ec2_instance_type: str | None = option(None, flag=None, help="Kind of machine.", ask="Which kind of machine?")
    iam_role_name: str | None = option(None, flag=None, help="Role of the job.", ask="Name of the role of the job?")
    image_uri: str | None = option(None, flag=None, help="Image to use instead of the stock one.")
    profile: str | None = option(None, flag=None, help="Profile with credentials.", ask="Profile with credentials?")
    region: str = option("us-east-1", flag=None, help="Region.", ask="Region?")
    base_job_name: str = option("accelerate-sagemaker-1", flag=None, help="Beginning of the job's name.")
    pytorch_version: str = option("1.10.2", flag=None, help="PyTorch of the stock image.")
    transformers_version: str = option("4.17.0", flag=None, help="transformers of the stock image.")
    py_version: str = option("py38", flag=None, help="Python of the stock image.")
    sagemaker_inputs_file: str | None = option(None, flag=None, help="Tab-separated file of channels and locations.")
    sagemaker_metrics_file: str | None = option(None, flag=None, help="Tab-separated file of metrics and patterns.")
    additional_args: dict[str, Any] | None = option(
        None,
        kind=MAPPING,
        flag=None,
        help="Further arguments of the estimator.",
    )
