"""Other systems, each as its documentation recommends for durable use, in an environment of its own."""
