"""Both ends of OpenAI's moderation API: scores asked of a server, and a server of scores."""
