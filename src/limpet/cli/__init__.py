"""The command line: `commands` has all commands, and `contents` lists them without loading any."""
