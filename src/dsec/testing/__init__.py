"""What tests of dsec, and of programs that use it, stand on: a node of one's own, an image store built once.

``node`` brings a private node up and down with leak checks, ``store`` builds the image store that such nodes share.
Imports ``dsec.node``, ``dsec.images`` and ``dsec.client``; nothing of the product imports it.
"""
