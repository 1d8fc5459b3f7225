"""The web page of experiments: a server that reads journals, and a page that needs no build step."""

PORT = 8643
"""The port of the server, unless another one is given."""

TOKEN = "HOPFLEET_UI_TOKEN"
"""Environment variable: the token, which other users of the machine could see among the arguments of a process."""

PARENT = "HOPFLEET_UI_PARENT"
"""Environment variable: the process with which the server ends."""

SOCKET = "HOPFLEET_UI_SOCKET"
"""Environment variable: the file descriptor of a socket that listens already."""
