"""The engine, beside stock diffusers and beside itself."""
