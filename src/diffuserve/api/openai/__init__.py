"""The doors of OpenAI's clients: its image and video APIs, as far as they differ from this server's own."""
