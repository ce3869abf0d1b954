"""The API that agent code calls: `Run` and its blocking twin."""
