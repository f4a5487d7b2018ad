"""The node's mind: who is admitted, what lives, what ended and why.

``admission`` and ``life`` decide (pure); ``records`` and ``catalogue`` remember; ``creates``, ``ends`` and
``recovery`` act through ``dsec.backends``; ``app`` and ``relay`` speak HTTP and WebSocket on ``edge.sock``. Called by
the apiserver over the socket only. Imports ``dsec.backends``, ``dsec.images``, ``dsec.node`` (paths, config) and
``dsec.api``; never the client or the apiserver.
"""
