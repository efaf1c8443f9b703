"""Looking inside: functions over a Trace. Empty until the studio needs it."""
