"""What is shown of a run: to the person who must decide, and to the model. Pure."""
