"""Who may call: principals and their tokens.

Owns ``iam.db``. Used by the apiserver, which authenticates every request here, and by ``dsec up``, which makes the
first token. Imports ``dsec.api`` and ``dsec.errors`` only.
"""
