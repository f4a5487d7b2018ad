"""What SWE-ReX's own tests do not ask: the deployment, other loops, faults of the platform, hostile output."""

from __future__ import annotations

import asyncio

import pytest
from swerex.exceptions import CommandTimeoutError, DeploymentNotStartedError, NoExitCodeError
from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest

import dsec
from dsec.integrations.swerex import DsecDeployment, DsecDeploymentConfig, DsecRuntime


async def test_the_deployment_is_one_sandbox() -> None:
    """It is not there before ``start`` and after ``stop``, has the configured limits, and stops for good."""
    deployment = DsecDeploymentConfig(memory_mib=256, env={"COLOUR": "blue"}).get_deployment()
    with pytest.raises(DeploymentNotStartedError):
        _ = deployment.runtime
    await deployment.start()
    runtime = deployment.runtime
    assert await deployment.is_alive()
    assert (await runtime.sandbox.info()).memory_mib == 256
    assert (await runtime.execute(Command(command="echo $COLOUR", shell=True))).stdout == "blue\n"
    await deployment.stop()
    await deployment.stop()
    alive = await runtime.is_alive()
    assert not alive and "stopped" in alive.message


def test_calls_come_from_one_loop_after_another() -> None:
    """A session goes on although each call has an event loop of its own, as in SWE-agent."""
    deployment = DsecDeployment()
    asyncio.run(deployment.start())
    try:
        asyncio.run(deployment.runtime.create_session(CreateBashSessionRequest()))
        asyncio.run(deployment.runtime.run_in_session(BashAction(command="cd /srv; export A=1; f() { echo f; }")))
        observed = asyncio.run(deployment.runtime.run_in_session(BashAction(command="pwd; echo $A; f")))
        assert (observed.output, observed.exit_code) == ("/srv\n1\nf\n", 0)
    finally:
        asyncio.run(deployment.stop())


async def test_a_lost_sandbox_is_raised(runtime_with_default_session: DsecRuntime) -> None:
    """A command in a session and one by itself raise SandboxGone: no exit code, no timeout."""
    runtime = runtime_with_default_session
    waiting = asyncio.create_task(runtime.run_in_session(BashAction(command="sleep 60")))
    while not any(shell._number > 1 for shell in runtime._sessions.values()):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await runtime.sandbox.stop()
    with pytest.raises(dsec.SandboxGone):
        await waiting
    with pytest.raises(dsec.SandboxGone):
        await runtime.execute(Command(command=["true"]))


async def test_late_ends_are_not_mistaken(runtime_with_default_session: DsecRuntime) -> None:
    """After a timeout the shell still runs the old command; the next one gets its own exit code and output."""
    run = runtime_with_default_session.run_in_session
    with pytest.raises(CommandTimeoutError):
        await run(BashAction(command="sleep 1; (exit 7)", timeout=0.1))
    observed = await run(BashAction(command="echo mine; (exit 9)", check="silent"))
    assert (observed.output, observed.exit_code) == ("mine\n", 9)


@pytest.mark.parametrize(
    "command",
    ["echo SHELLPS1PREFIX", "echo EXITCODESTART5EXITCODEEND; false", "PS1='$ '", "PS1=; PROMPT_COMMAND='echo hello'",
     "echo \"$PS1\"; false"],
)  # fmt: skip
async def test_output_that_looks_like_a_prompt_is_output(
    runtime_with_default_session: DsecRuntime, command: str
) -> None:
    """Nothing that a command prints, or does to its prompt, changes what is seen of its end."""
    run = runtime_with_default_session.run_in_session
    observed = await run(BashAction(command=command, check="silent"))
    assert observed.exit_code == (1 if command.endswith("false") else 0)
    following = await run(BashAction(command="echo next", check="raise"))
    assert "next\n" in following.output and following.exit_code == 0


async def test_commands_arrive_verbatim(runtime_with_default_session: DsecRuntime) -> None:
    """Tabs, quotes, history and control characters mean what they mean in a script, in long commands too."""
    run = runtime_with_default_session.run_in_session
    text = "a\tb\t\t'q' \"d\" !! !x \\n ✨ \x01"
    for padding in ("pad\n", "pad\n" * 100_000):
        observed = await run(BashAction(command=f"cat <<'END' | tail -1\n{padding}{text}\nEND"))
        assert observed.output == f"{text}\n"


async def test_much_output_comes_whole(runtime_with_default_session: DsecRuntime) -> None:
    """Megabytes through the terminal, in order and complete."""
    observed = await runtime_with_default_session.run_in_session(BashAction(command="seq 300000"))
    assert observed.output == "".join(f"{number}\n" for number in range(1, 300_001))


async def test_a_shell_that_ends_says_so(remote_runtime: DsecRuntime) -> None:
    """``exit`` in a session is an error of that command, and others go on."""
    await remote_runtime.create_session(CreateBashSessionRequest(session="one"))
    await remote_runtime.create_session(CreateBashSessionRequest(session="two"))
    with pytest.raises(NoExitCodeError):
        await remote_runtime.run_in_session(BashAction(command="exit 3", session="one"))
    assert (await remote_runtime.run_in_session(BashAction(command="echo on", session="two"))).output == "on\n"
