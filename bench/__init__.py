"""Benchmarks: what the promises about speed and memory are measured with. ``python -m bench`` runs them.

``targets`` is the seam (dsec through its SDK, Docker through its API), ``scenarios`` what is timed, ``memory`` what
idle sandboxes cost, ``phases`` where the time goes, ``record`` what is kept (raw samples), ``table`` what is shown.
Needs a node that is up; Docker is measured beside it when a daemon answers, or started with ``--docker start``.
Nothing here is a test: the numbers are reported, never asserted.
"""
