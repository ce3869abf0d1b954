"""`limpet demo`: an agent of nine steps is killed at step 6, and another process resumes it.

The service, the processes and the SIGKILL are real. Everything shown is read from the store or from the service's own
counters. It needs no API key, and no network beyond this machine.
"""
