"""The HTTP server that carries the application: uvicorn with deadlines and limits of connections."""
