"""A model family of another package: it shares nothing with the built-in ones but the contract."""
