"""The Python client of a server, as programs use it: `diffuserve.Client` and `diffuserve.AsyncClient`."""
