"""From what a create names to layers that are this node's, ready to be held."""

from __future__ import annotations

from dsec.api.types import CreateRequest
from dsec.edge.environment import Environment, environment_of, image_of
from dsec.images import Image, Images, LayerTag, is_base_reference

__all__ = ["composed"]


async def composed(images: Images, request: CreateRequest, deadline: float) -> Environment:
    """What a request is made of, as names mean it now; its image is pulled where that is asked for.

    ``deadline``, by the event loop's time, is the create's. Hold the layers before the next await: until then any of
    them may be removed. Errors: as of ``Images.resolve`` and ``NodeLayers.find``.
    """
    # Before the image, which may take minutes; and after it, when nothing can be removed before it is held.
    _layers_of(images, request)
    image = await _image(images, request, deadline)
    workspace, toolkits = _layers_of(images, request)
    return environment_of(request, image, workspace, toolkits)


async def _image(images: Images, request: CreateRequest, deadline: float) -> Image:
    if is_base_reference(request.image):
        return image_of(images.layers.find(request.image, "base"))
    while True:
        pruned = images.pruned
        image = await images.resolve(request.image, pull=request.pull, deadline=deadline)
        # Between the end of a shared pull and this caller's turn its image may have been removed again.
        if images.pruned == pruned or all(map(images.layers.knows, image.layers)):
            return image


def _layers_of(images: Images, request: CreateRequest) -> tuple[LayerTag | None, list[LayerTag]]:
    """What a request lays over its image, as tags mean it now."""
    workspace = None if request.workspace is None else images.layers.find(request.workspace, "workspace")
    return workspace, [images.layers.find(each, "toolkit") for each in request.toolkits]
