"""Texts and names: shortened, shown safely, compared, and written as parts of paths, ids and times."""
