"""The wire types of the public API and pure functions on them.

Owns what client, apiserver and edge must agree on: requests and answers (``types``), frames (``frames``),
IDs and keys (``ids``), limits (``limits``), errors' HTTP status (``http``). Does no I/O. May be imported by every
part; imports only ``dsec.errors``.
"""
