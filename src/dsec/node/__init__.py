"""One node of this machine: where its files are, how it is configured, how it is brought up and taken down.

``paths`` and ``config`` are read by every process of the node, ``joined`` moves bytes for apiserver and edge; ``up``,
``down``, ``restart`` and ``doctor`` are what the CLI calls. Imports ``dsec.api``, ``dsec.errors`` and, for the first
token, ``dsec.iam``; never the client.
"""
