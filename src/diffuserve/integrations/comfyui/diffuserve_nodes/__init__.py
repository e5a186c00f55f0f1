"""Nodes that draw on a diffuserve server, for ComfyUI; they need nothing beyond what it has itself.

ComfyUI's environment says where the server is: `DIFFUSERVE_SERVER`, and `DIFFUSERVE_API_KEY` where it asks
for a key. Neither is an input of a node, since workflows are shared.
"""

from .nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
