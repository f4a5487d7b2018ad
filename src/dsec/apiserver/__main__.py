"""``python -m dsec.apiserver --config FILE``: the apiserver process of one machine."""

from __future__ import annotations

import argparse
import logging
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dsec.api.trust import server_context
from dsec.apiserver.edge_link import Edges, LocalEdge
from dsec.apiserver.gate import Gate
from dsec.apiserver.server import inherited_socket, listen, make_server
from dsec.iam.tokens import Tokens
from dsec.node.config import load_config

__all__ = ["main"]


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="dsec.apiserver")
    parser.add_argument("--config", type=Path, required=True, help="config.json of the node")
    config = load_config(parser.parse_args().config)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    gate = Gate(
        _version(),
        Edges(LocalEdge(config.node, config.paths.edge_socket, config.paths.ports_socket)),
        Tokens(config.paths.iam_db),
    )
    server = make_server(gate, tls=server_context(*config.tls_files) if config.has_tls else None)
    server.run(sockets=[inherited_socket() or listen(config.host, config.port)])


def _version() -> str:
    try:
        return version("dsec-platform")
    except PackageNotFoundError:
        return "0+checkout"


if __name__ == "__main__":
    main()
