"""`limpet demo`: the two-minute story. An agent of nine steps is killed at step 6, and another process goes on.

The service that it talks to, the processes and the SIGKILL are real, and whatever is shown is read from the store or
from the service's own counters. No key, and no network beyond this machine.
"""
