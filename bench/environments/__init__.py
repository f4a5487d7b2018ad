"""Environments measured: layers composed and read on demand, beside whole copies. ``python -m bench.environments``.

``contents`` makes the files, ``publishing`` makes layers of them and puts these into a store, beside them the same as
``tar.gz``; ``world`` is what all of it runs in: a store with a known latency and bandwidth, and nodes of its own.
One file a scenario: ``first``, ``mounts``, ``reads``, ``burst``, ``replacing``, ``packing``, ``space``. ``eager`` is
what they are compared with: copy and extract; ``docker`` is the same by ``docker load``. ``figures`` makes the table.
Nothing here is a test: the numbers are reported, never asserted, but that what was read is right.
"""
