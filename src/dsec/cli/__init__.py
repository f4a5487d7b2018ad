"""The command ``dsec``: Docker's words and flags where Docker has the command, the node's own otherwise.

``main`` puts the commands together, ``commands/`` holds one file for each noun, ``values`` reads what users type,
``printing`` shows what the server says, ``failures`` turns errors into one line and an exit code, ``session`` runs
the async client. Imports ``dsec.client`` and ``dsec.node``, both only when a command needs them, so that the shell's
completion is fast. Nothing imports this package.
"""
