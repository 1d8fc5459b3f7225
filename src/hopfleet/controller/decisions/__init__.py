"""What the controller decides, one maker of decisions per module: functions from the state to messages.

Each function applies a message through ``State.decide`` before it thinks of the next one.
"""
