"""Models as the whole product knows them: what they can do, cost and need, without torch."""
