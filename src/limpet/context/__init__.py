"""Views of a run: for the person who decides a request, and for the model. Pure."""
