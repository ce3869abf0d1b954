"""One file per foreign system, thin: each implements our protocol or theirs."""
