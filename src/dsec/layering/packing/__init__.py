"""What a sandbox has written as a layer: read below one descriptor, residue left out, owners as inside the sandbox.

``python -m dsec.layering.packing`` is a program of its own, run by the node's keeper with the snapshot as descriptor
3 and with few of root's capabilities: everything that it reads is hostile. Imports nothing of dsec but
``dsec.errors`` and ``dsec.layering``.
"""
