"""Reading a recorded run back: history, lookup of recorded calls, order of returns."""
