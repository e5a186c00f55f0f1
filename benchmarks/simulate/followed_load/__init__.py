"""A simulated fleet whose number of workers follows the load, by the product's policy and by others."""
