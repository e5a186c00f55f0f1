"""ComfyUI: nodes that draw on a diffuserve server, as a folder for its `custom_nodes`."""
