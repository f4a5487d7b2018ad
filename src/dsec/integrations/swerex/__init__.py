"""SWE-ReX on dsec: a deployment, and the runtime that it starts.

``SWEEnv(deployment=DsecDeployment(image="python:3.12"), …)``. Nothing is installed or served inside the sandbox.
"""

from __future__ import annotations

from dsec.integrations.swerex.deployment import DsecDeployment, DsecDeploymentConfig
from dsec.integrations.swerex.runtime import DsecRuntime

__all__ = ["DsecDeployment", "DsecDeploymentConfig", "DsecRuntime"]
