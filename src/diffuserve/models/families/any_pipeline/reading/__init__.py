"""What a folder's pipeline class takes and can, read from its source and configs: nothing of it is run."""
