"""Models without torch: their capabilities, costs and memory, as all processes know them."""
