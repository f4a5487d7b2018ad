"""The wire types of the public API and pure functions on them.

Owns what client, apiserver and edge must agree on: requests and answers (``types`` for sandboxes, execs and the node,
else the module named after what they are about), frames (``frames``), IDs and keys (``ids``), errors' HTTP status
(``http``). Does no I/O. May be imported by every
part; imports only ``dsec.errors`` and ``dsec.decoding``.
"""
