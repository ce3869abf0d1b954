"""User-declared definitions: agents, tools, their types, upgrades and contracts."""
