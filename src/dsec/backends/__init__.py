"""Kinds of sandbox behind one contract: ``contract`` has the Protocol, each other module one implementation.

Owns the edge's side of ``runtime.sock`` (``link``, ``wire``) and what is particular to a kind (``container``).
Called by ``dsec.edge`` only. Imports ``dsec.api`` and ``dsec.errors``; never the edge, the images or the client.
"""
