"""dsec inside other people's frameworks: one module per peer, each named as the package it serves.

``inspect_ai`` (Inspect), ``swerex`` (SWE-ReX), ``minisweagent`` (mini-swe-agent), ``harbor`` (Harbor). A module
imports its peer, so importing one needs that peer installed; nothing else in dsec imports them. They use the SDK
alone (``dsec.client``, ``dsec.sync``), as a peer's own author could. What each does and does not is in
docs/compatibility.md.
"""
