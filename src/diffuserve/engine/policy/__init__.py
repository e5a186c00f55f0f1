"""Pure decisions of the engine: the requests of a step, and the images of a turn (INV-5)."""
