"""What users declare: agents, tools, their types, upgrades and contracts."""
