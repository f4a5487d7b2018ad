"""Networks of sandboxes, against servers in a namespace of the benchmark's own: nothing leaves the machine."""

from bench.network.measure import QUICK, NetworkLoad, measure_network
from bench.network.table import network_rows

__all__ = ["QUICK", "NetworkLoad", "measure_network", "network_rows"]
