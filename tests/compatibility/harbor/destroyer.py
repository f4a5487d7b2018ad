"""An agent whose sandbox is destroyed while it works."""

from __future__ import annotations

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from dsec.integrations.harbor import DsecEnvironment


class SandboxDestroyer(BaseAgent):
    """Solves the task, then loses its sandbox and goes on."""

    @staticmethod
    def name() -> str:
        """Its name in results."""
        return "sandbox-destroyer"

    def version(self) -> str:
        """Harbor asks for one."""
        return "1"

    async def setup(self, environment: BaseEnvironment) -> None:
        """Needs nothing."""

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        """The answer would be right."""
        await environment.exec("(cat given.txt; echo $COLOUR) > answer.txt")
        assert isinstance(environment, DsecEnvironment)
        await environment.sandbox.stop()
        await environment.exec("true")
