"""The agent's engine processes: started, watched, restarted, and chosen by model."""
