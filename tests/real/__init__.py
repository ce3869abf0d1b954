"""Real parts that tests start by themselves."""
