"""Stores: where layers lie so that every node can have them.

A store is a directory that nodes share (any distributed file system's mount) or an S3 bucket; what lies in it is
fixed by decision 0041. This room publishes layers, fetches them whole, moves their tags and clears away what nothing
needs. The edge calls it; it imports ``dsec.images`` for what a layer is, ``dsec.errors`` and ``dsec.decoding``. The
fetcher (``crates/fetcher``), which fills layers on demand, reads the same objects.

``index`` is pure; ``Store`` is the seam, with three implementations and one suite over them.
Everything that comes out of a store is treated as hostile until its digest has been checked.
"""
