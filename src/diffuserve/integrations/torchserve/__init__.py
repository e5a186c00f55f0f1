"""TorchServe: a model archive, and its handler."""
