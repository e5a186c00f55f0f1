"""OpenAI's image and video APIs, as far as they differ from this server's own."""
