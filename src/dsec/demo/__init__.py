"""The main job, ``dsec demo``: real repair tasks, solved, attacked and graded.

Owns the tasks (``pairs``), what is fetched for them (``fetch``, ``unpack``), the environments made of that
(``prepare``) and what their tests say (``truth``), the scripted agents (``policies``), what is taken over from an
agent (``patch``), how it is graded (``grade``, ``verdict``), the run (``job``, ``run``), and what is printed
(``report``, ``table``). Uses nothing of dsec but its public SDK; ``boxes`` is the narrow seam behind which Docker can
stand beside it. Called by the CLI.

Not covered yet: code that subverts its own test process from within (a patched package that makes pytest report what
it likes). What is outside of that process is covered: other files, other processes, conftest files, results on disk.
"""
