"""Image prompts of Stable Diffusion: IP-Adapters."""
