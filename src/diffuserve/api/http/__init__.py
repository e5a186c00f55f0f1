"""HTTP as this server speaks it: errors, JSON, parameters of paths, and requests that can be ended."""
