"""The SDK for plain Python: the same names and signatures as ``dsec``, without ``await``.

One implementation: each call runs the async one in a background thread's event loop, so it works inside a running
loop, in any thread and after a fork. Imports ``dsec.client`` and ``dsec.errors`` only.

    from dsec.sync import DSecClient

    with DSecClient() as client, client.sandbox("dsec/debian:12") as sandbox:
        print(sandbox.run_shell("echo hello").stdout)
"""

from dsec.sync.client import DSecClient, Job
from dsec.sync.sandbox import Exec, Sandbox, Session

__all__ = ["DSecClient", "Exec", "Job", "Sandbox", "Session"]
