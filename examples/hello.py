"""The first program: a sandbox, a command, its output."""

import asyncio

import dsec


async def main() -> None:
    async with dsec.DSecClient() as client, client.sandbox("dsec/debian:12", memory_mib=1024) as sandbox:
        result = await sandbox.run_shell("python3 --version && id -un", timeout_s=60)
        print(result.exit_code, result.stdout)


asyncio.run(main())
