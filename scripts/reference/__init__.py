"""Generated parts of the reference: a module for each page, from the declarations in the code."""
