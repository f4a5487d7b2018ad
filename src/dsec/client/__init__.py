"""The SDK's async core: what a user imports as ``dsec``.

``client`` and ``sandbox`` are what users hold; ``link`` is one event loop's way to the apiserver (HTTP pool and
WebSocket), ``streams`` the frames on it, ``creating`` and ``running`` the promises about creates and execs. Imports
``dsec.api`` and ``dsec.errors`` only, never a server part.
"""
