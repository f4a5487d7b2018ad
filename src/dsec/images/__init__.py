"""Images and layers of a node: names, store, catalogue, imports, builds.

Owns ``layers/`` and the tables of images in ``catalogue.db``. The edge calls it, through ``Images``; it imports
nothing of dsec but ``dsec.errors``, ``dsec.decoding``, ``dsec.databases`` and ``dsec.layering``, which makes the
layers. What comes from a registry, an archive or a client is treated as hostile.

``Images`` is the door; the ``references`` module is pure; ``Tools`` is the seam to external programs.
"""

from dsec.images.catalogue import Image, ImageConfig, LayerEnvironment, LayerTag
from dsec.images.config import ImagesConfig
from dsec.images.images import Images, Pull
from dsec.images.progress import OnProgress, Phase, Progress
from dsec.images.references import (
    ImageReference,
    ImportSource,
    LayerReference,
    is_base_reference,
    is_layer_reference,
    parse_image,
    parse_image_name,
    parse_layer,
    parse_layer_choice,
    parse_source,
)
from dsec.images.tools import SubprocessTools, ToolResult, Tools

__all__ = [
    "Image",
    "ImageConfig",
    "ImageReference",
    "Images",
    "ImagesConfig",
    "LayerEnvironment",
    "ImportSource",
    "LayerReference",
    "LayerTag",
    "OnProgress",
    "Phase",
    "Progress",
    "Pull",
    "SubprocessTools",
    "ToolResult",
    "Tools",
    "is_base_reference",
    "is_layer_reference",
    "parse_image",
    "parse_image_name",
    "parse_layer",
    "parse_layer_choice",
    "parse_source",
]
