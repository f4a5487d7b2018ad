"""Network policy: what a caller says, compiled into the flat table that the node's proxy evaluates. Pure.

Called by ``edge``; imports ``api`` and ``errors`` alone.
"""

from dsec.network.compile import (
    NetworkSettings,
    NetworkUplink,
    compile_network,
    parse_network,
    parse_settings_problem,
)
from dsec.network.evaluate import Verdict, decide, may_resolve
from dsec.network.table import EgressRule, EgressTable, RoutedRule

__all__ = [
    "EgressRule",
    "EgressTable",
    "NetworkSettings",
    "NetworkUplink",
    "RoutedRule",
    "Verdict",
    "compile_network",
    "decide",
    "may_resolve",
    "parse_network",
    "parse_settings_problem",
]
