"""How layers are made: trees of files out of archives, directories and other layers, and their EROFS form.

Owns the bytes of a layer: what its metadata and its data look like, the same for the same tree on every machine.
``dsec.images`` runs it as a program of its own (``python -m dsec.layering``), so that an archive made by an enemy is
read by a process that has nothing else; readers of layers import it too. Imports nothing of dsec but ``dsec.errors``.
"""
