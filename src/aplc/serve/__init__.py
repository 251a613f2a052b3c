"""`aplc serve`: a model behind HTTP, and a page to try it on. `server.py` is where it starts."""
