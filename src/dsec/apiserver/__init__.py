"""The only way in: authenticates, routes by sandbox ID, copies.

Keeps nothing per sandbox. ``routes`` is the table of everything that can be asked; ``gate`` the ASGI application in
front of it; ``edge_link`` the seam to the nodes; ``proxy`` copies HTTP and ``splice`` WebSockets; ``own`` answers
what needs no node. Imports ``dsec.iam``, ``dsec.api``, ``dsec.node.config`` and ``dsec.errors``; never the edge or
the client.
"""
